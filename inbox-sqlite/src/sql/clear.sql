-- ?1 sequence numbers as a JSON array, ?2 now.
DELETE FROM {inbox}_message
WHERE seq IN (
    SELECT s.seq
    FROM json_each(?1) AS j
    CROSS JOIN {inbox}_state AS s ON s.seq = j.value
    WHERE s.state <> 1 OR s.lease_until <= ?2
)

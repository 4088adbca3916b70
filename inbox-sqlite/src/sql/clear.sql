-- ?1 sequence numbers as a JSON array, ?2 now. Leases that have run out end first: the trigger that sees
-- them end knows when, for the next one of a run.
UPDATE {inbox}_state
SET state = 0, lease_until = ?2
WHERE seq IN (SELECT value FROM json_each(?1))
  AND state = 1 AND lease_until <= ?2 AND ordering_key IS NOT NULL;
DELETE FROM {inbox}_message
WHERE seq IN (
    SELECT s.seq
    FROM json_each(?1) AS j
    CROSS JOIN {inbox}_state AS s ON s.seq = j.value
    WHERE s.state <> 1 OR s.lease_until <= ?2
)

-- ?1 state, ?2 finished at or before, ?3 keys as JSON arrays of handler and id,
-- ?4 handler if not all.
DELETE FROM {inbox}_message
WHERE seq IN (
    SELECT m.seq
    FROM json_each(?3) AS k
    CROSS JOIN {inbox}_message AS m ON m.handler = k.value ->> 0 AND m.id = k.value ->> 1
    CROSS JOIN {inbox}_state AS s ON s.seq = m.seq
    WHERE s.state = ?1 AND s.finished_at <= ?2 AND (?4 IS NULL OR s.handler = ?4)
)

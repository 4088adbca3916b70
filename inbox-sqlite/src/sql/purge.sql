-- ?1 state, ?2 finished at or before, ?3 limit.
DELETE FROM {inbox}_message
WHERE seq IN (
    SELECT seq FROM {inbox}_state
    WHERE state = ?1 AND finished_at <= ?2
    ORDER BY finished_at, seq LIMIT ?3
)

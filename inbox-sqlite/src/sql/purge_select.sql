-- What a purge deletes. ?1 state, ?2 finished at or before, ?3 limit.
SELECT {columns}, m.payload, s.result
FROM {inbox}_state AS s CROSS JOIN {inbox}_message AS m ON m.seq = s.seq
WHERE s.state = ?1 AND s.finished_at <= ?2
ORDER BY s.finished_at, s.seq
LIMIT ?3

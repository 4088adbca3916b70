-- What a purge deletes, and what has lost its message. Parameters as in purge.sql.
WITH expired AS MATERIALIZED (
    {expired}
)
SELECT {columns}, m.payload, s.result, s.history
FROM expired AS e
CROSS JOIN {inbox}_state AS s ON s.seq = e.seq
LEFT JOIN {inbox}_message AS m ON m.seq = e.seq
ORDER BY e.finished_at, e.seq

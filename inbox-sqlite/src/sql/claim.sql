-- ?1 handlers as a JSON array, ?2 now, ?3 limit. Each handler gives at most ?3 candidates from
-- the head of the claim index, so the backlog behind them costs nothing. Their numbers are sorted
-- and limited first: sorted together with the messages, every payload would be copied into the sorter
-- and out again. The LEFT JOIN keeps their order.
WITH due AS MATERIALIZED (
    SELECT c.visible_at, c.seq, c.state, c.token, c.started, c.finished, c.replays
    FROM json_each(?1) AS h
    CROSS JOIN {inbox}_state AS c ON c.seq IN (
        SELECT seq FROM {inbox}_state
        WHERE claimable = 1 AND handler = h.value AND visible_at <= ?2
        ORDER BY visible_at, seq LIMIT ?3
    )
    WHERE NOT EXISTS (SELECT 1 FROM {inbox}_paused AS p WHERE p.handler = h.value)
    ORDER BY c.visible_at, c.seq
    LIMIT ?3
)
SELECT due.seq, m.handler, m.id, m.kind, m.content_type, m.headers, m.ordering_key, m.accepted_at,
    due.state, due.token, due.started, due.finished, due.replays, m.payload
FROM due
LEFT JOIN {inbox}_message AS m ON m.seq = due.seq

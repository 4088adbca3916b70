-- ?1 handlers as a JSON array, ?2 now, ?3 limit. Each handler gives at most ?3 candidates from
-- the head of the claim index, so the backlog behind them costs nothing.
SELECT c.seq, m.handler, m.id, m.kind, m.content_type, m.headers, m.ordering_key, m.accepted_at,
    c.state, c.token, c.started, c.finished, m.payload
FROM json_each(?1) AS h
CROSS JOIN {inbox}_state AS c ON c.seq IN (
    SELECT seq FROM {inbox}_state
    WHERE claimable = 1 AND handler = h.value AND visible_at <= ?2
    ORDER BY visible_at, seq LIMIT ?3
)
LEFT JOIN {inbox}_message AS m ON m.seq = c.seq
ORDER BY c.visible_at, c.seq
LIMIT ?3

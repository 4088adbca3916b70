-- Parameters as in claim.sql, and ?4 the most messages of one ordering key. With each candidate those that
-- directly follow it in its ordering key, as far as each is pending, due and has no attempt that ended
-- without an outcome. The queue gives out the rows of a run before those of the next one, so nothing
-- beyond the limit is looked at.
WITH RECURSIVE due AS MATERIALIZED (
    SELECT c.visible_at, c.seq, c.handler, c.ordering_key, c.state, c.token, c.started, c.finished, c.replays
    FROM json_each(?1) AS h
    CROSS JOIN {inbox}_state AS c ON c.seq IN (
        SELECT seq FROM {inbox}_state
        WHERE claimable = 1 AND handler = h.value AND visible_at <= ?2
        ORDER BY visible_at, seq LIMIT ?3
    )
    WHERE NOT EXISTS (SELECT 1 FROM {inbox}_paused AS p WHERE p.handler = h.value)
    ORDER BY c.visible_at, c.seq
    LIMIT ?3
),
run (
    due_at, first, seq, length, handler, ordering_key, state, token, started, finished, replays
) AS (
    SELECT visible_at, seq, seq, 1, handler, iif(started <= finished, ordering_key, NULL), state,
        token, started, finished, replays
    FROM due
    UNION ALL
    SELECT run.due_at, run.first, c.seq, run.length + 1, run.handler, run.ordering_key, c.state, c.token,
        c.started, c.finished, c.replays
    FROM run
    CROSS JOIN {inbox}_state AS c ON c.seq = (
        SELECT seq FROM {inbox}_state
        WHERE handler = run.handler AND ordering_key = run.ordering_key
          AND ordering_key IS NOT NULL AND (state < 2 OR blocks = 1) AND seq > run.seq
        ORDER BY seq LIMIT 1
    )
    WHERE run.length < ?4 AND c.state = 0 AND c.visible_at <= ?2 AND c.started <= c.finished
    ORDER BY 1, 2, 3
    LIMIT ?3
)
SELECT run.seq, m.handler, m.id, m.kind, m.content_type, m.headers, m.ordering_key, m.accepted_at,
    run.state, run.token, run.started, run.finished, run.replays, m.payload, run.first
FROM run
LEFT JOIN {inbox}_message AS m ON m.seq = run.seq

WITH lost AS MATERIALIZED (
    SELECT w.ctid AS at, w.visible_at, w.seq FROM work AS w
    WHERE w.handler = $1 AND w.claimable AND w.state = 1 AND w.visible_at <= now()
    ORDER BY w.visible_at, w.seq LIMIT $2
    FOR UPDATE SKIP LOCKED
), waiting AS MATERIALIZED (
    SELECT w.ctid AS at, w.visible_at, w.seq FROM work AS w
    WHERE w.handler = $1 AND w.claimable AND w.state = 0 AND w.visible_at <= now()
    ORDER BY w.visible_at, w.seq LIMIT $2
    FOR UPDATE SKIP LOCKED
), chosen AS MATERIALIZED (
    SELECT at FROM (SELECT * FROM lost UNION ALL SELECT * FROM waiting) AS due
    ORDER BY visible_at, seq LIMIT $2
), leased AS (
    UPDATE work AS w
    SET state = 1, visible_at = now() + $3 * interval '1 microsecond',
        token = greatest(w.token + 1, (extract(epoch FROM now()) * 1000000)::bigint),
        started = w.started + 1, worker = $4
    FROM chosen AS c
    WHERE w.ctid = c.at
    RETURNING w.seq, w.token, (extract(epoch FROM w.visible_at) * 1000000)::bigint AS lease_until,
        w.started, w.finished
)
SELECT l.seq, l.token, l.lease_until, l.started, l.finished,
    m.accepted_at::text, m.id, m.kind, m.headers::text, m.payload
FROM leased AS l
JOIN message AS m ON m.seq = l.seq

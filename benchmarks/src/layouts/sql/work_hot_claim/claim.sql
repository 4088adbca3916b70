-- Walks past the rows that others hold.
WITH chosen AS MATERIALIZED (
    SELECT w.ctid AS at FROM work AS w
    WHERE w.handler = $1 AND w.visible_at <= now()
      AND (w.lease_until IS NULL OR w.lease_until <= now())
    ORDER BY w.visible_at, w.seq LIMIT $2
    FOR UPDATE SKIP LOCKED
), leased AS (
    UPDATE work AS w
    SET lease_until = now() + $3 * interval '1 microsecond',
        token = greatest(w.token + 1, (extract(epoch FROM now()) * 1000000)::bigint),
        started = w.started + 1, worker = $4
    FROM chosen AS c
    WHERE w.ctid = c.at
    RETURNING w.seq, w.token, (extract(epoch FROM w.lease_until) * 1000000)::bigint AS lease_until,
        w.started, w.finished
)
SELECT l.seq, l.token, l.lease_until, l.started, l.finished,
    m.accepted_at::text, m.id, m.kind, m.headers::text, m.payload
FROM leased AS l
JOIN message AS m ON m.seq = l.seq

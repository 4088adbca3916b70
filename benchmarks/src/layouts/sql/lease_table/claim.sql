WITH lost AS MATERIALIZED (
    SELECT w.ctid AS at, w.lease_until AS visible_at, w.seq, true AS leased FROM lease AS w
    WHERE w.handler = $1 AND w.lease_until <= now()
    ORDER BY w.lease_until, w.seq LIMIT $2
    FOR UPDATE SKIP LOCKED
), waiting AS MATERIALIZED (
    SELECT w.ctid AS at, w.visible_at, w.seq, false AS leased FROM pending AS w
    WHERE w.handler = $1 AND w.visible_at <= now()
    ORDER BY w.visible_at, w.seq LIMIT $2
    FOR UPDATE SKIP LOCKED
), chosen AS MATERIALIZED (
    SELECT at, leased FROM (SELECT * FROM lost UNION ALL SELECT * FROM waiting) AS due
    ORDER BY visible_at, seq LIMIT $2
), taken AS (
    DELETE FROM pending AS w USING chosen AS c
    WHERE w.ctid = c.at AND NOT c.leased
    RETURNING w.*
), renewed AS (
    UPDATE lease AS w
    SET lease_until = now() + $3 * interval '1 microsecond',
        token = greatest(w.token + 1, (extract(epoch FROM now()) * 1000000)::bigint),
        started = w.started + 1, worker = $4
    FROM chosen AS c
    WHERE w.ctid = c.at AND c.leased
    RETURNING w.*
), moved AS (
    INSERT INTO lease (seq, lease_until, due_at, token, started, finished, handler, worker)
    SELECT seq, now() + $3 * interval '1 microsecond', due_at,
        greatest(w.token + 1, (extract(epoch FROM now()) * 1000000)::bigint),
        started + 1, finished, handler, $4
    FROM taken AS w
    RETURNING *
), leased AS (
    SELECT seq, token, (extract(epoch FROM lease_until) * 1000000)::bigint AS lease_until, started, finished
    FROM (SELECT * FROM renewed UNION ALL SELECT * FROM moved) AS l
)
SELECT l.seq, l.token, l.lease_until, l.started, l.finished,
    m.accepted_at::text, m.id, m.kind, m.headers::text, m.payload
FROM leased AS l
JOIN message AS m ON m.seq = l.seq

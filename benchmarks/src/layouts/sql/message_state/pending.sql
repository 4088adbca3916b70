WITH new AS (
    INSERT INTO message (accepted_at, handler, id, kind, headers, payload)
    SELECT now() - interval '1 day' + g * interval '1 millisecond',
        $1, gen_random_uuid()::text, 'bench.event', '{}', decode(md5(g::text), 'hex')
    FROM generate_series(1, $2::bigint) AS g
    RETURNING seq, accepted_at AS at
)
INSERT INTO state (seq, visible_at, due_at, handler)
SELECT seq, at, at, $1 FROM new

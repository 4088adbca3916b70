WITH new AS (
    INSERT INTO message (accepted_at, handler, id, kind, headers, payload)
    SELECT now() - interval '1 day' + g * interval '1 millisecond',
        $1, gen_random_uuid()::text, 'bench.event', '{}', decode(md5(g::text), 'hex')
    FROM generate_series(1, $2::bigint) AS g
    RETURNING seq, accepted_at AS at
)
INSERT INTO done (seq, due_at, finished_at, token, started, finished, state, worker)
SELECT seq, at, at, seq, 1, 1, 2, 'bench' FROM new

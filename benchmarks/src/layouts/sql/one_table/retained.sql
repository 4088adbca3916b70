INSERT INTO message (
    accepted_at, visible_at, due_at, finished_at, token, started, finished, state, claimable,
    handler, id, kind, worker, headers, payload
)
SELECT at, at, at, at, g, 1, 1, 2, false,
    $1, gen_random_uuid()::text, 'bench.event', 'bench', '{}', decode(md5(g::text), 'hex')
FROM generate_series(1, $2::bigint) AS g
CROSS JOIN LATERAL (
    SELECT now() - interval '1 day' + g * interval '1 millisecond' AS at
) AS finished

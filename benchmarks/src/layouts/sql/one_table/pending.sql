INSERT INTO message (accepted_at, visible_at, due_at, handler, id, kind, headers, payload)
SELECT at, at, at,
    $1, gen_random_uuid()::text, 'bench.event', '{}', decode(md5(g::text), 'hex')
FROM generate_series(1, $2::bigint) AS g
CROSS JOIN LATERAL (
    SELECT now() - interval '1 day' + g * interval '1 millisecond' AS at
) AS received

INSERT INTO message (accepted_at, visible_at, due_at, handler, id, kind, headers, payload)
SELECT now(), now(), now(), $1, m.id, 'bench.event', '{}', m.payload
FROM unnest($2::text[], $3::bytea[]) AS m (id, payload)
ON CONFLICT (handler, id) DO NOTHING
RETURNING id

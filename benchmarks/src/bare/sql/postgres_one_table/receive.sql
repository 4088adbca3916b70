INSERT INTO message (accepted_at, visible_at, due_at, handler, id, kind, headers, payload)
SELECT now(), now(), now(), $1, m.id, m.kind, m.headers::json, m.payload
FROM unnest($2::text[], $3::text[], $4::text[], $5::bytea[])
    AS m (id, kind, headers, payload)
ON CONFLICT (handler, id) DO NOTHING
RETURNING id

WITH new AS (
    INSERT INTO message (accepted_at, handler, id, kind, headers, payload)
    SELECT now(), $1, m.id, 'bench.event', '{}', m.payload
    FROM unnest($2::text[], $3::bytea[]) AS m (id, payload)
    ON CONFLICT (handler, id) DO NOTHING
    RETURNING seq, id
), queued AS (
    INSERT INTO work (seq, visible_at, due_at, handler)
    SELECT seq, now(), now(), $1 FROM new
)
SELECT id FROM new

-- ?1 handler, ?2 id, ?3 kind, ?4 content type, ?5 headers, ?6 ordering key, ?7 now, ?8 due at,
-- ?9 payload.
INSERT INTO {inbox}_message (
    handler, id, kind, content_type, headers, ordering_key,
    accepted_at, first_due_at, payload_bytes, payload
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, length(?9), ?9)
ON CONFLICT (handler, id) DO NOTHING
RETURNING 'accepted', seq, 0, 0;

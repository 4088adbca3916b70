INSERT INTO {message} (
    handler, id, kind, content_type, headers, ordering_key, accepted_at, first_due_at,
    batch, payload_bytes, payload
) VALUES

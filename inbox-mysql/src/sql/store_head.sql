INSERT INTO {message} (
    seq, handler, id, kind, content_type, headers, ordering_key, accepted_at, first_due_at,
    payload_bytes, payload
) VALUES

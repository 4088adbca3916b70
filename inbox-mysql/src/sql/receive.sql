-- Stores messages. Leaves a known key as it is. A number that is in use is no known key: adding to it is
-- out of range, whatever the SQL mode.
INSERT INTO {message} (
    handler, id, kind, content_type, headers, ordering_key, accepted_at, first_due_at,
    batch, fingerprint, payload_bytes, payload
) VALUES
{values}
ON DUPLICATE KEY UPDATE seq = IF(
    {message}.handler = VALUES(handler) AND {message}.id = VALUES(id),
    {message}.seq, {message}.seq + 9223372036854775807
);

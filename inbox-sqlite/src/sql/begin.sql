-- The message if it is new, its lease if it can be taken, and the message as it stands then.
-- ?1 handler, ?2 id, ?3 kind, ?4 content type, ?5 headers, ?6 ordering key, ?7 now, ?8 due at,
-- ?9 payload, ?10 lease end, ?11 worker.
BEGIN IMMEDIATE;
INSERT INTO {inbox}_message (
    handler, id, kind, content_type, headers, ordering_key,
    accepted_at, first_due_at, payload_bytes, payload
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, length(?9), ?9)
ON CONFLICT (handler, id) DO NOTHING
RETURNING 'accepted', seq, 0, 0;
UPDATE {inbox}_state
SET state = 1, lease_until = ?10, visible_at = ?10, token = max(token + 1, ?7),
    started = started + 1, worker = ?11
WHERE seq = (SELECT seq FROM {inbox}_message WHERE handler = ?1 AND id = ?2)
  AND claimable = 1 AND visible_at <= ?7
RETURNING 'leased', seq, token, started;
SELECT {columns}, m.payload, s.result
FROM {inbox}_message AS m LEFT JOIN {inbox}_state AS s ON s.seq = m.seq
WHERE m.handler = ?1 AND m.id = ?2;
COMMIT

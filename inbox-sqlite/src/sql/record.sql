-- The message if it is new, and its end if it can be processed now.
-- ?1 handler, ?2 id, ?3 kind, ?4 content type, ?5 headers, ?6 ordering key, ?7 now, ?8 due at,
-- ?9 payload, ?10 result, ?11 fingerprint. A new token, so that a worker whose lease ran out is told so when it
-- settles.
INSERT INTO {inbox}_message (
    handler, id, kind, content_type, headers, ordering_key, fingerprint,
    accepted_at, first_due_at, payload_bytes, payload
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?11, ?7, ?8, length(?9), ?9)
ON CONFLICT (handler, id) DO NOTHING
RETURNING 'accepted', seq, 0, 0;
UPDATE {inbox}_state
SET state = 2, claimable = 0, lease_until = NULL, token = max(token + 1, ?7),
    started = started + 1, finished = finished + 1, finished_at = ?7, result = ?10
WHERE seq = (SELECT seq FROM {inbox}_message WHERE handler = ?1 AND id = ?2)
  AND claimable = 1 AND visible_at <= ?7
RETURNING 'recorded', seq, token, started

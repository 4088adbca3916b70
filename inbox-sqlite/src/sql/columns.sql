coalesce(m.seq, s.seq), m.handler, m.id, m.kind, m.content_type, m.headers, m.ordering_key, m.accepted_at,
m.payload_bytes, s.state, s.visible_at, s.due_at, s.lease_until, s.token, s.started,
s.finished, s.replays, s.worker, s.finished_at, s.last_error, s.blocks,
m.fingerprint, s.leased_at

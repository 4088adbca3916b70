s.seq, m.handler, m.id, m.kind, m.content_type, m.headers::text, m.ordering_key, m.accepted_at,
        {payload_bytes}, s.state, s.due_at, s.started, s.finished, s.replays, s.worker,
        s.finished_at, s.last_error, m.fingerprint, s.leased_at

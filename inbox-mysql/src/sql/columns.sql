COALESCE(m.seq, d.seq, f.seq), m.handler, m.id, m.kind, m.content_type, m.headers, m.ordering_key, m.accepted_at,
    {payload_bytes},
    CASE WHEN w.seq IS NOT NULL THEN w.queue IN (1, 3) WHEN d.seq IS NOT NULL THEN 3 ELSE f.state END,
    w.visible_at, COALESCE(w.due_at, d.due_at, f.due_at), COALESCE(w.token, d.token, f.token),
    COALESCE(w.started, d.started, f.started), COALESCE(w.finished, d.finished, f.finished),
    COALESCE(w.replays, d.replays, f.replays), COALESCE(w.worker, d.worker, f.worker),
    COALESCE(d.finished_at, f.finished_at), COALESCE(w.last_error, d.last_error, f.last_error),
    COALESCE(d.blocks, 0), m.fingerprint, COALESCE(w.leased_at, d.leased_at, f.leased_at)

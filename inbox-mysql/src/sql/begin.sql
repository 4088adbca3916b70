UPDATE {work} AS w
SET w.queue = 1, w.token = GREATEST(w.token + 1, @inbox_now), w.started = w.started + 1,
    w.worker = {worker}, w.leased_at = @inbox_now, w.visible_at = @inbox_now + {length}
WHERE w.seq = @inbox_seq AND w.queue < 2 AND w.visible_at <= @inbox_now
    AND {no_run};

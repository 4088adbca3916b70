-- Leases what was selected.
UPDATE {claimed} AS j
STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq
SET w.queue = 1, w.token = GREATEST(w.token + 1, @inbox_now), w.started = w.started + 1,
    w.leased_at = @inbox_now, w.visible_at = @inbox_now + {length}, w.worker = {worker};

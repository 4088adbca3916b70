-- Leases what was selected. Of a run, the attempt of the first counts now.
UPDATE {claimed} AS j
STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq
SET w.queue = IF(j.seq > j.first, 3, 1), w.token = GREATEST(w.token + 1, @inbox_now),
    w.started = w.started + IF(j.seq > j.first, 0, 1), w.leased_at = @inbox_now,
    w.visible_at = @inbox_now + {length}, w.worker = {worker};

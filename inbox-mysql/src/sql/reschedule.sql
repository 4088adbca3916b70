-- Makes the messages of @inbox_seqs, which are pending and locked, due at another time. A lease that has run
-- out gets a new token, so that its holder is told so when it settles.
UPDATE {seqs} AS j STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq
SET w.token = GREATEST(w.token + 1, @inbox_now)
WHERE w.queue IN (1, 3);
UPDATE {seqs} AS j STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq
SET w.queue = IF(w.queue IN (1, 3), IF(w.ordering_key IS NULL, 0, 2), w.queue),
    w.worker = COALESCE(w.worker, REPEAT(x'00', 32)),
    w.due_at = {due},
    w.visible_at = {due};

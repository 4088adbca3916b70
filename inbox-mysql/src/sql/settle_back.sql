-- A retry finishes an attempt and has a new due time; a release takes the attempt back.
UPDATE {settled} AS j
STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq AND w.token = j.token
SET w.queue = IF(w.ordering_key IS NULL, 0, 2),
    w.due_at = IF(j.retry = 1, @inbox_now + j.after, w.due_at),
    w.visible_at = IF(j.retry = 1, @inbox_now + j.after, w.due_at),
    w.started = IF(j.retry = 1, w.started, GREATEST(w.started - 1, 0)),
    w.finished = w.finished + j.retry,
    w.last_error = IF(j.retry = 1, UNHEX(j.error), w.last_error)
WHERE w.queue = 1 AND j.outcome = 0;

-- A retry (1) finishes an attempt and has a new due time; a release (0) takes the attempt back; a
-- deferral (2) takes it back and has a new due time. One that is not counted yet is counted first. The
-- history is set first, and what is started before what is finished: what is set may be what is read
-- behind it.
UPDATE {settled} AS j
STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq AND w.token = j.token
SET w.history = IF(j.error IS NULL, w.history, {past_attempt}),
    w.queue = IF(w.ordering_key IS NULL, 0, 2),
    w.due_at = IF(j.back = 0, w.due_at, @inbox_now + j.after),
    w.visible_at = IF(j.back = 0, w.due_at, @inbox_now + j.after),
    w.started = GREATEST({counted} - (j.back <> 1), 0),
    w.finished = w.finished + (j.back = 1),
    w.last_error = COALESCE(UNHEX(j.error), w.last_error)
WHERE w.queue IN (1, 3) AND j.outcome = 0;

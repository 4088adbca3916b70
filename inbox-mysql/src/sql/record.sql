-- Processes the message that find_lock.sql has found, if it may run now: @inbox_taken is its number then. It
-- gets a new token, so that a worker whose lease ran out is told so when it settles.
SET @inbox_taken = NULL;
SELECT w.seq INTO @inbox_taken FROM {work} AS w
WHERE w.seq = @inbox_seq AND w.queue < 2 AND w.visible_at <= @inbox_now AND {no_run} FOR UPDATE;
INSERT INTO {tally} (handler, backlog, processed, dead, discarded)
SELECT handler, -1, 1, 0, 0 FROM {work} WHERE seq = @inbox_taken FOR UPDATE;
INSERT INTO {done} (
    seq, handler, state, due_at, leased_at, token, started, finished, replays, worker, last_error,
    finished_at, kept, result, history
)
SELECT seq, handler, 2, due_at, leased_at, GREATEST(token + 1, @inbox_now), started + 1, finished + 1,
    replays, worker, last_error, @inbox_now, {kept}, {result}, history
FROM {work} WHERE seq = @inbox_taken FOR UPDATE;

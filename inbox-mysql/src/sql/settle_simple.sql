-- The common case: for one handler, processed without results and ordering keys. The rows are locked as they
-- are read.
INSERT INTO {done} (
    seq, handler, state, due_at, leased_at, token, started, finished, replays, worker, last_error,
    finished_at, kept, result, history
)
SELECT w.seq, w.handler, 2, w.due_at, w.leased_at, w.token, w.started, w.finished + 1, w.replays,
    w.worker, w.last_error, @inbox_now, 1, NULL, w.history
FROM {held} AS j STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq AND w.token = j.token
WHERE w.queue = 1 AND w.handler = {handler}
FOR UPDATE /*!80000 OF w */;

INSERT INTO {done} (
    seq, handler, state, due_at, leased_at, token, started, finished, replays, worker, last_error,
    finished_at, kept, result, history
)
SELECT w.seq, w.handler, 2, w.due_at, w.leased_at, w.token, {counted}, w.finished + 1,
    w.replays, w.worker, w.last_error, @inbox_now, {keeps} OR j.result IS NOT NULL, FROM_BASE64(j.result), w.history
FROM {settled} AS j STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq AND w.token = j.token
WHERE w.queue IN (1, 3) AND j.outcome = 2
FOR UPDATE /*!80000 OF w */;

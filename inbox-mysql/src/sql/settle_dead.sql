INSERT INTO {dead} (
    seq, handler, due_at, leased_at, token, started, finished, replays, worker, last_error,
    finished_at, blocks, kept, history
)
SELECT w.seq, w.handler, w.due_at, w.leased_at, w.token, {counted}, w.finished + 1,
    w.replays, w.worker, UNHEX(j.error), @inbox_now, j.blocks = 1 AND w.ordering_key IS NOT NULL, 1,
    {past_attempt}
FROM {settled} AS j STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq AND w.token = j.token
WHERE w.queue IN (1, 3) AND j.outcome = 3
FOR UPDATE /*!80000 OF w */;

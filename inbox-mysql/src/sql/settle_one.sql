-- One lease whose message is processed and has no ordering key. The row is locked as it is read. Answers
-- with 1 if the lease stood.
INSERT INTO {done} (
    seq, handler, state, due_at, leased_at, token, started, finished, replays, worker, last_error,
    finished_at, kept, result, history
)
SELECT w.seq, w.handler, 2, w.due_at, w.leased_at, w.token, w.started, w.finished + 1, w.replays,
    w.worker, w.last_error, {time}, 1, {result}, w.history
FROM {work} AS w FORCE INDEX (PRIMARY)
WHERE w.seq = {seq} AND w.token = {token} AND w.queue = 1
FOR UPDATE;
INSERT INTO {tally} (handler, backlog, processed, dead, discarded)
SELECT w.handler, -1, 1, 0, 0 FROM {work} AS w FORCE INDEX (PRIMARY)
WHERE w.seq = {seq} AND w.token = {token} AND w.queue = 1
FOR UPDATE;
DELETE FROM {work} WHERE seq = {seq} AND token = {token} AND queue = 1;
SELECT ROW_COUNT();

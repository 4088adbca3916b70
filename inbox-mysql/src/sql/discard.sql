-- Gives the messages of @inbox_seqs up. They are locked, and read with locking reads: see
-- `multi_statement.rs`. A lease that has run out gets a new token, so that its holder is told so when it
-- settles.
INSERT INTO {tally} (handler, backlog, processed, dead, discarded)
SELECT w.handler, -COUNT(*), 0, 0, COUNT(*)
FROM {seqs} AS j STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq
GROUP BY w.handler
FOR UPDATE /*!80000 OF w */;
INSERT INTO {tally} (handler, backlog, processed, dead, discarded)
SELECT d.handler, 0, 0, -COUNT(*), COUNT(*)
FROM {seqs} AS j STRAIGHT_JOIN {dead} AS d FORCE INDEX (PRIMARY) ON d.seq = j.seq
GROUP BY d.handler
FOR UPDATE /*!80000 OF d */;
INSERT INTO {done} (
    seq, handler, state, due_at, leased_at, token, started, finished, replays, worker, last_error,
    finished_at, kept, history
)
SELECT w.seq, w.handler, 4, w.due_at, w.leased_at,
    IF(w.queue IN (1, 3), GREATEST(w.token + 1, @inbox_now), w.token),
    w.started, w.finished, w.replays, w.worker, w.last_error, @inbox_now, 1,
    w.history
FROM {seqs} AS j STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq
FOR UPDATE /*!80000 OF w */;
INSERT INTO {done} (
    seq, handler, state, due_at, leased_at, token, started, finished, replays, worker, last_error,
    finished_at, kept, history
)
SELECT d.seq, d.handler, 4, d.due_at, d.leased_at, d.token, d.started, d.finished, d.replays,
    d.worker, d.last_error, @inbox_now, d.kept, d.history
FROM {seqs} AS j STRAIGHT_JOIN {dead} AS d FORCE INDEX (PRIMARY) ON d.seq = j.seq
FOR UPDATE /*!80000 OF d */;
DELETE e
FROM {seqs} AS j
STRAIGHT_JOIN {message} AS m FORCE INDEX (PRIMARY) ON m.seq = j.seq
STRAIGHT_JOIN {open} AS e FORCE INDEX (PRIMARY)
    ON e.handler = m.handler AND e.ordering_key = m.ordering_key AND e.seq = m.seq;
DELETE w FROM {seqs} AS j STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq;
DELETE d FROM {seqs} AS j STRAIGHT_JOIN {dead} AS d FORCE INDEX (PRIMARY) ON d.seq = j.seq;

-- Makes the final messages of @inbox_seqs pending again. They are locked, and read with locking
-- reads: see `multi_statement.rs`.
INSERT INTO {tally} (handler, backlog, processed, dead, discarded)
SELECT d.handler, COUNT(*), 0, -COUNT(*), 0
FROM {seqs} AS j STRAIGHT_JOIN {dead} AS d FORCE INDEX (PRIMARY) ON d.seq = j.seq
GROUP BY d.handler
FOR UPDATE /*!80000 OF d */;
INSERT INTO {tally} (handler, backlog, processed, dead, discarded)
SELECT f.handler, COUNT(*), -SUM(f.state = 2), 0, -SUM(f.state = 4)
FROM {seqs} AS j STRAIGHT_JOIN {done} AS f FORCE INDEX (PRIMARY) ON f.seq = j.seq
GROUP BY f.handler
FOR UPDATE /*!80000 OF f */;
INSERT INTO {open} (handler, ordering_key, seq)
SELECT m.handler, m.ordering_key, m.seq
FROM {seqs} AS j STRAIGHT_JOIN {message} AS m FORCE INDEX (PRIMARY) ON m.seq = j.seq
WHERE m.ordering_key IS NOT NULL
FOR UPDATE /*!80000 OF m */
ON DUPLICATE KEY UPDATE seq = {open}.seq;
INSERT INTO {work} (
    seq, handler, ordering_key, queue, visible_at, due_at, leased_at, token, started, finished,
    replays, worker, history
)
SELECT d.seq, d.handler, m.ordering_key, IF(m.ordering_key IS NULL, 0, 2), @inbox_now, @inbox_now,
    d.leased_at, d.token, 0, 0, d.replays + 1, COALESCE(d.worker, REPEAT(x'00', 32)), d.history
FROM {seqs} AS j
STRAIGHT_JOIN {dead} AS d FORCE INDEX (PRIMARY) ON d.seq = j.seq
STRAIGHT_JOIN {message} AS m FORCE INDEX (PRIMARY) ON m.seq = j.seq
FOR UPDATE /*!80000 OF d, m */;
INSERT INTO {work} (
    seq, handler, ordering_key, queue, visible_at, due_at, leased_at, token, started, finished,
    replays, worker, history
)
SELECT f.seq, f.handler, m.ordering_key, IF(m.ordering_key IS NULL, 0, 2), @inbox_now, @inbox_now,
    f.leased_at, f.token, 0, 0, f.replays + 1, COALESCE(f.worker, REPEAT(x'00', 32)), f.history
FROM {seqs} AS j
STRAIGHT_JOIN {done} AS f FORCE INDEX (PRIMARY) ON f.seq = j.seq
STRAIGHT_JOIN {message} AS m FORCE INDEX (PRIMARY) ON m.seq = j.seq
FOR UPDATE /*!80000 OF f, m */;
DELETE d FROM {seqs} AS j STRAIGHT_JOIN {dead} AS d FORCE INDEX (PRIMARY) ON d.seq = j.seq;
DELETE f FROM {seqs} AS j STRAIGHT_JOIN {done} AS f FORCE INDEX (PRIMARY) ON f.seq = j.seq;

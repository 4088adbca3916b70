-- Deletes the messages of @inbox_seqs. They and their ordering keys are locked, and they are counted
-- with locking reads: see `multi_statement.rs`.
INSERT INTO {tally} (handler, backlog, processed, dead, discarded)
SELECT w.handler, -COUNT(*), 0, 0, 0
FROM {seqs} AS j STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq
GROUP BY w.handler
FOR UPDATE /*!80000 OF w */;
INSERT INTO {tally} (handler, backlog, processed, dead, discarded)
SELECT d.handler, 0, 0, -COUNT(*), 0
FROM {seqs} AS j STRAIGHT_JOIN {dead} AS d FORCE INDEX (PRIMARY) ON d.seq = j.seq
GROUP BY d.handler
FOR UPDATE /*!80000 OF d */;
INSERT INTO {tally} (handler, backlog, processed, dead, discarded)
SELECT f.handler, 0, -SUM(f.state = 2), 0, -SUM(f.state = 4)
FROM {seqs} AS j STRAIGHT_JOIN {done} AS f FORCE INDEX (PRIMARY) ON f.seq = j.seq
GROUP BY f.handler
FOR UPDATE /*!80000 OF f */;
DELETE e
FROM {seqs} AS j
STRAIGHT_JOIN {message} AS m FORCE INDEX (PRIMARY) ON m.seq = j.seq
STRAIGHT_JOIN {open} AS e FORCE INDEX (PRIMARY)
    ON e.handler = m.handler AND e.ordering_key = m.ordering_key AND e.seq = m.seq;
DELETE w FROM {seqs} AS j STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq;
DELETE d FROM {seqs} AS j STRAIGHT_JOIN {dead} AS d FORCE INDEX (PRIMARY) ON d.seq = j.seq;
DELETE f FROM {seqs} AS j STRAIGHT_JOIN {done} AS f FORCE INDEX (PRIMARY) ON f.seq = j.seq;
DELETE m FROM {seqs} AS j STRAIGHT_JOIN {message} AS m FORCE INDEX (PRIMARY) ON m.seq = j.seq;

-- Deletes the messages of @inbox_seqs. They and their ordering keys are locked, and they are counted
-- with a locking read: see `multi_statement.rs`.
INSERT INTO {tally} (handler, backlog, processed, dead, discarded)
SELECT d.handler, 0, 0, -COUNT(*), 0
FROM {seqs} AS j STRAIGHT_JOIN {dead} AS d FORCE INDEX (PRIMARY) ON d.seq = j.seq
GROUP BY d.handler
FOR UPDATE /*!80000 OF d */;
DELETE e
FROM {seqs} AS j
STRAIGHT_JOIN {message} AS m FORCE INDEX (PRIMARY) ON m.seq = j.seq
STRAIGHT_JOIN {open} AS e FORCE INDEX (PRIMARY)
    ON e.handler = m.handler AND e.ordering_key = m.ordering_key AND e.seq = m.seq;
DELETE d FROM {seqs} AS j STRAIGHT_JOIN {dead} AS d FORCE INDEX (PRIMARY) ON d.seq = j.seq;
DELETE m FROM {seqs} AS j STRAIGHT_JOIN {message} AS m FORCE INDEX (PRIMARY) ON m.seq = j.seq;

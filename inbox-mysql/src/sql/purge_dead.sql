-- Deletes the messages of @inbox_seqs. They and their ordering keys are locked, and they are counted
-- with a locking read: see `script.rs`.
INSERT INTO {tally} (handler, backlog, processed, dead, discarded)
SELECT d.handler, 0, 0, -COUNT(*), 0
FROM {seqs} AS j STRAIGHT_JOIN {dead} AS d FORCE INDEX (PRIMARY) ON d.seq = j.seq
GROUP BY d.handler
FOR UPDATE /*!80000 OF d */;
{close}
DELETE d FROM {seqs} AS j STRAIGHT_JOIN {dead} AS d FORCE INDEX (PRIMARY) ON d.seq = j.seq;
DELETE m FROM {seqs} AS j STRAIGHT_JOIN {message} AS m FORCE INDEX (PRIMARY) ON m.seq = j.seq;

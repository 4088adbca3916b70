-- Deletes the messages of @inbox_seqs. They are locked, and counted with a locking read: see
-- `multi_statement.rs`.
INSERT INTO {tally} (handler, backlog, processed, dead, discarded)
SELECT f.handler, 0, -SUM(f.state = 2), 0, -SUM(f.state = 4)
FROM {seqs} AS j STRAIGHT_JOIN {done} AS f FORCE INDEX (PRIMARY) ON f.seq = j.seq
GROUP BY f.handler
FOR UPDATE /*!80000 OF f */;
DELETE f FROM {seqs} AS j STRAIGHT_JOIN {done} AS f FORCE INDEX (PRIMARY) ON f.seq = j.seq;
DELETE m FROM {seqs} AS j STRAIGHT_JOIN {message} AS m FORCE INDEX (PRIMARY) ON m.seq = j.seq;

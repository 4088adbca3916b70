-- Lists those of runs of several that were selected.
INSERT INTO {run} (handler, ordering_key, seq)
SELECT w.handler, w.ordering_key, w.seq
FROM {claimed} AS j STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq
WHERE j.in_run = 1
FOR UPDATE /*!80000 OF w */;

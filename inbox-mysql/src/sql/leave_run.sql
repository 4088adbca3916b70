-- The leases of @inbox_seqs end, which may be of runs.
DELETE r
FROM {seqs} AS j
STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq
STRAIGHT_JOIN {run} AS r FORCE INDEX (PRIMARY)
    ON r.handler = w.handler AND r.ordering_key = w.ordering_key AND r.seq = w.seq;

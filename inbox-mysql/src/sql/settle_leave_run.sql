-- The leases that end here may be of runs.
DELETE r
FROM {settled} AS j
STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq AND w.token = j.token
STRAIGHT_JOIN {run} AS r FORCE INDEX (PRIMARY)
    ON r.handler = w.handler AND r.ordering_key = w.ordering_key AND r.seq = w.seq
WHERE w.queue IN (1, 3);

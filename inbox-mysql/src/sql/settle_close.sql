DELETE e
FROM {settled} AS j
STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq AND w.token = j.token
STRAIGHT_JOIN {open} AS e FORCE INDEX (PRIMARY)
    ON e.handler = w.handler AND e.ordering_key = w.ordering_key AND e.seq = w.seq
WHERE w.queue IN (1, 3) AND (j.outcome = 2 OR (j.outcome = 3 AND j.blocks = 0));

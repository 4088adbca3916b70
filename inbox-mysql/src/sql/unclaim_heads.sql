-- Takes the pending heads of the locked keys out of the claims' sight, until heads are promoted next.
UPDATE {keys} AS j
STRAIGHT_JOIN {ordering} AS o FORCE INDEX (PRIMARY)
    ON o.handler = UNHEX(j.h) AND o.ordering_key = UNHEX(j.k)
STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = o.head
SET w.queue = 2
WHERE w.queue = 0;

-- Makes the earliest open message of each locked key its head, unless the head is leased, and
-- forgets keys without open messages. A join tells whether the head is leased: MariaDB would turn a
-- NOT EXISTS on a small table into a look at all of it, and lock that. A head that is leased in a run which is
-- not listed, as after loading tables of different times, is one that claims find when its lease runs out.
UPDATE {keys} AS j
STRAIGHT_JOIN {ordering} AS o FORCE INDEX (PRIMARY)
    ON o.handler = UNHEX(j.h) AND o.ordering_key = UNHEX(j.k)
LEFT JOIN {work} AS l FORCE INDEX (PRIMARY) ON l.seq = o.head AND l.queue = 1
SET o.head = COALESCE((
    SELECT e.seq FROM {open} AS e FORCE INDEX (PRIMARY)
    WHERE e.handler = o.handler AND e.ordering_key = o.ordering_key
    ORDER BY e.handler, e.ordering_key, e.seq LIMIT 1
), 0)
WHERE l.seq IS NULL;
UPDATE {keys} AS j
STRAIGHT_JOIN {ordering} AS o FORCE INDEX (PRIMARY)
    ON o.handler = UNHEX(j.h) AND o.ordering_key = UNHEX(j.k)
STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = o.head
SET w.queue = IF(w.queue = 3, 1, 0)
WHERE w.queue IN (2, 3);
DELETE o
FROM {keys} AS j
STRAIGHT_JOIN {ordering} AS o FORCE INDEX (PRIMARY)
    ON o.handler = UNHEX(j.h) AND o.ordering_key = UNHEX(j.k)
WHERE o.head = 0;

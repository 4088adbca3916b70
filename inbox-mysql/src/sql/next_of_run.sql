-- Makes the earliest of what is left of a run the head of its locked key, unless the head is leased. Its
-- attempt counts from now on, unless its lease has run out. Where there is none, the head is left as it is.
UPDATE {keys} AS j
STRAIGHT_JOIN {ordering} AS o FORCE INDEX (PRIMARY)
    ON o.handler = UNHEX(j.h) AND o.ordering_key = UNHEX(j.k)
LEFT JOIN {work} AS l FORCE INDEX (PRIMARY) ON l.seq = o.head AND l.queue = 1
SET o.head = COALESCE((
    SELECT r.seq FROM {run} AS r FORCE INDEX (PRIMARY)
    WHERE r.handler = o.handler AND r.ordering_key = o.ordering_key
    ORDER BY r.handler, r.ordering_key, r.seq LIMIT 1
), o.head)
WHERE l.seq IS NULL;
UPDATE {keys} AS j
STRAIGHT_JOIN {ordering} AS o FORCE INDEX (PRIMARY)
    ON o.handler = UNHEX(j.h) AND o.ordering_key = UNHEX(j.k)
STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = o.head
SET w.started = w.started + (w.visible_at > @inbox_now), w.queue = 1
WHERE w.queue = 3;

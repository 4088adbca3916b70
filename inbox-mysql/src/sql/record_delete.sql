DELETE e
FROM {work} AS w
STRAIGHT_JOIN {open} AS e FORCE INDEX (PRIMARY)
    ON e.handler = w.handler AND e.ordering_key = w.ordering_key AND e.seq = w.seq
WHERE w.seq = @inbox_taken;
DELETE FROM {work} WHERE seq = @inbox_taken;

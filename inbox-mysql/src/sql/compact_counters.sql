-- Sums up rows of the tally that no other transaction has locked: of one part of the handlers, so that those of one
-- handler meet. What is summed up is newer, and not looked at again. Summed with a locking read, as they are deleted:
-- see `multi_statement.rs`.
SET @inbox_rows = NULL;
{agg} SELECT JSON_ARRAYAGG(n) INTO @inbox_rows
FROM (
    SELECT n FROM {tally} WHERE n <= {newest} AND CRC32(handler) % {parts} = {part}
    ORDER BY n LIMIT {slice} FOR UPDATE SKIP LOCKED
) AS t;
INSERT INTO {tally} (handler, backlog, processed, dead, discarded)
SELECT t.handler, SUM(t.backlog), SUM(t.processed), SUM(t.dead), SUM(t.discarded)
FROM {rows} AS j STRAIGHT_JOIN {tally} AS t FORCE INDEX (PRIMARY) ON t.n = j.n
GROUP BY t.handler
HAVING SUM(t.backlog) <> 0 OR SUM(t.processed) <> 0 OR SUM(t.dead) <> 0 OR SUM(t.discarded) <> 0
FOR UPDATE /*!80000 OF t */;
DELETE t FROM {rows} AS j STRAIGHT_JOIN {tally} AS t FORCE INDEX (PRIMARY) ON t.n = j.n;

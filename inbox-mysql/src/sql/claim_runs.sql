-- Selects what is due first in any of the queues, locks it, and looks for the run of each: those that
-- directly follow it in its ordering key, as far as each is pending, due, and has no attempt that ended
-- without an outcome, nor a lease that it lost with a run. One message after the other, up to the limit:
-- what no run has room for is not looked at. @inbox_seqs are the selected ones whose lease has run out.
--
-- Who changes what is open of an ordering key has locked the key. A claim has locked a message already, and
-- so does not wait for the key: without its lock, what is pending is taken alone, and what has run out is left.
-- What is open is read with locks: see `multi_statement.rs`. A row that another transaction has locked ends
-- the run.
SET @inbox_heads = NULL, @inbox_claimed = NULL, @inbox_seqs = NULL, @inbox_until = @inbox_now;
{agg} SELECT JSON_ARRAYAGG(JSON_ARRAY(
    visible_at, seq, IF(queue = 1, 1, 0), IF(started > finished, 1, 0), HEX(handler), HEX(ordering_key)
) /*M! ORDER BY visible_at, seq */) INTO @inbox_heads
FROM (SELECT * FROM ({queues}) AS c ORDER BY visible_at, seq LIMIT {limit}) AS t;
{agg_deep} SELECT {deep} JSON_ARRAYAGG(JSON_ARRAY(due, seq, first, IF(members > 1, 1, 0))),
    JSON_ARRAYAGG(IF(lapsed = 1 AND seq = first, seq, NULL)) INTO @inbox_claimed, @inbox_seqs
FROM (
    WITH RECURSIVE in_order AS (
        -- Stands for none. Its values are as wide as any of the columns.
        SELECT CAST(-1 AS SIGNED) AS n, 9223372036854775807 AS due, 9223372036854775807 AS first,
            NULLIF(9223372036854775807, 9223372036854775807) AS seq, CAST(0 AS SIGNED) AS place,
            CAST(0 AS SIGNED) AS taken, CAST(0 AS SIGNED) AS lapsed,
            UNHEX(REPEAT('00', 128)) AS handler, UNHEX(REPEAT('00', 255)) AS ordering_key,
            CAST(NULL AS SIGNED) AS goes_on
        UNION ALL
        -- The next one of the run, if there is one.
        SELECT i.n, i.due, i.first,
            (
                SELECT w.seq FROM {work} AS w FORCE INDEX (PRIMARY)
                WHERE w.seq = (
                    SELECT e.seq FROM {open} AS e FORCE INDEX (PRIMARY)
                    WHERE e.handler = i.handler AND e.ordering_key = i.ordering_key AND e.seq > i.seq
                    ORDER BY e.handler, e.ordering_key, e.seq LIMIT 1
                    FOR UPDATE
                ) AND w.queue = 2 AND w.visible_at <= @inbox_now AND w.started <= w.finished
                    AND w.worker IS NOT NULL
                FOR UPDATE SKIP LOCKED
            ),
            i.place + 1, i.taken + 1, i.lapsed, i.handler, i.ordering_key, i.goes_on
        FROM in_order AS i
        WHERE i.seq IS NOT NULL AND COALESCE(i.goes_on, 0) = 1 AND i.place < {run_limit}
            AND i.taken + 1 < {limit}
        UNION ALL
        -- Or else the next first one.
        SELECT i.n + 1, h.due, h.seq, h.seq, 1, i.taken + (i.seq IS NOT NULL), h.lapsed,
            UNHEX(h.h), UNHEX(h.k),
            (
                SELECT 1 - h.vanished FROM {ordering} AS o FORCE INDEX (PRIMARY)
                WHERE o.handler = UNHEX(h.h) AND o.ordering_key = UNHEX(h.k)
                FOR UPDATE SKIP LOCKED
            )
        FROM in_order AS i STRAIGHT_JOIN {heads} AS h
        WHERE NOT (i.seq IS NOT NULL AND COALESCE(i.goes_on, 0) = 1 AND i.place < {run_limit})
            AND i.taken + (i.seq IS NOT NULL) < {limit}
    )
    SELECT i.due, i.first, i.seq, i.lapsed, COUNT(*) OVER (PARTITION BY i.first) AS members
    FROM in_order AS i
    WHERE i.seq IS NOT NULL
        AND (i.place > 1 OR i.lapsed = 0 OR i.ordering_key IS NULL OR i.goes_on IS NOT NULL)
) AS counted;

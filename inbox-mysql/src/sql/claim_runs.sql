-- Selects what is due first in any of the queues, locks it, and looks for the run of each: those that
-- directly follow it in its ordering key, as far as each is pending, due, and has no attempt that ended
-- without an outcome, nor a lease that it lost with a run. @inbox_seqs are the selected ones whose lease
-- has run out.
--
-- Who changes what is open of an ordering key has locked the key. A claim has locked a message already, and
-- so does not wait for the key: without its lock, what is pending is taken alone, and what has run out is left.
-- What is open is read with locks: see `multi_statement.rs`. A row that another transaction has locked ends
-- the run.
SET @inbox_heads = NULL, @inbox_claimed = NULL, @inbox_seqs = NULL, @inbox_until = @inbox_now;
{agg} SELECT JSON_ARRAYAGG(JSON_ARRAY(
    visible_at, seq, IF(queue = 1, 1, 0), IF(started > finished, 1, 0), HEX(handler), HEX(ordering_key)
)) INTO @inbox_heads
FROM (SELECT * FROM ({queues}) AS c ORDER BY visible_at, seq LIMIT {most_heads}) AS t;
{agg_deep} SELECT {deep} JSON_ARRAYAGG(JSON_ARRAY(due, seq, first, IF(members > 1, 1, 0))),
    JSON_ARRAYAGG(IF(lapsed = 1 AND seq = first, seq, NULL)) INTO @inbox_claimed, @inbox_seqs
FROM (
    SELECT t.*, COUNT(*) OVER (PARTITION BY first) AS members
    FROM (
        SELECT *
        FROM (
            SELECT f.*, ROW_NUMBER() OVER (PARTITION BY first ORDER BY place) AS row_place
            FROM (
                WITH RECURSIVE in_order AS (
                    SELECT h.due, h.seq AS first, h.seq, 1 AS place, h.lapsed,
                        UNHEX(h.h) AS handler, UNHEX(h.k) AS ordering_key,
                        (
                            SELECT 1 - h.vanished FROM {ordering} AS o FORCE INDEX (PRIMARY)
                            WHERE o.handler = UNHEX(h.h) AND o.ordering_key = UNHEX(h.k)
                            FOR UPDATE SKIP LOCKED
                        ) AS goes_on
                    FROM {heads} AS h
                    UNION ALL
                    SELECT i.due, i.first,
                        (
                            SELECT e.seq FROM {open} AS e FORCE INDEX (PRIMARY)
                            WHERE e.handler = i.handler AND e.ordering_key = i.ordering_key
                                AND e.seq > i.seq
                            ORDER BY e.handler, e.ordering_key, e.seq LIMIT 1
                            FOR UPDATE
                        ),
                        i.place + 1, i.lapsed, i.handler, i.ordering_key, i.goes_on
                    FROM in_order AS i
                    WHERE i.goes_on = 1 AND i.seq IS NOT NULL AND i.place < {run_limit}
                )
                SELECT i.due, i.first, i.seq, i.place, i.lapsed
                FROM in_order AS i STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = i.seq
                WHERE IF(
                    i.place = 1,
                    i.lapsed = 0 OR i.ordering_key IS NULL OR i.goes_on IS NOT NULL,
                    w.queue = 2 AND w.visible_at <= @inbox_now AND w.started <= w.finished
                        AND w.worker IS NOT NULL
                )
                FOR UPDATE /*!80000 OF w */ SKIP LOCKED
            ) AS f
        ) AS n
        WHERE row_place = place
        ORDER BY due, first, place LIMIT {limit}
    ) AS t
) AS counted;

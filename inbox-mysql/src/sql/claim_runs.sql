-- Selects what is due first in any of the queues, locks it, and looks for the run of each: those that
-- directly follow it in its ordering key, as far as each is pending, due, and has no attempt that ended
-- without an outcome, nor a lease that it lost with a run. One first message after the other, up to the limit:
-- the ordering keys of what no claim has room for are not looked at. @inbox_seqs are the selected ones whose
-- lease has run out.
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
    -- With a limit the list is read once, into a table with an index. Without, it is read again at each step.
    WITH RECURSIVE heads AS (
        SELECT n, due, seq, lapsed, vanished, UNHEX(h) AS handler, UNHEX(k) AS ordering_key
        FROM {heads} AS j LIMIT 1000000
    ), in_order AS (
        -- Stands for none. The members of a run are a list as text; NULL without the key's lock. Taken: how many
        -- messages those before have.
        SELECT CAST(0 AS SIGNED) AS n, CAST(0 AS SIGNED) AS taken,
            CAST('[]' AS CHAR(1000000)) AS members
        UNION ALL
        -- The open messages of each key are read once, no more of them than a run may have: neither server looks
        -- for the next one behind a number of another row by an index. In MariaDB a derived table knows nothing of the
        -- rows around it; so what is read there is gathered in a variable, up to the first row that ends the run.
        SELECT h.n, i.taken + COALESCE(JSON_LENGTH(i.members), 1), (
            SELECT
                /*!80000 IF(
                    h.vanished = 1 OR LEAST(
                        {run_limit}, {limit} - i.taken - COALESCE(JSON_LENGTH(i.members), 1)
                    ) < 2,
                    JSON_ARRAY(h.seq),
                    COALESCE(JSON_MERGE_PRESERVE(JSON_ARRAY(h.seq), (
                        SELECT JSON_ARRAYAGG(seq) FROM (
                            SELECT seq, ROW_NUMBER() OVER (ORDER BY seq) AS place,
                                SUM(goes_on IS NULL) OVER (ORDER BY seq) AS ends
                            FROM (
                                SELECT e.seq, (
                                    SELECT 1 FROM {work} AS w FORCE INDEX (PRIMARY)
                                    WHERE w.seq = e.seq AND w.queue = 2 AND w.visible_at <= @inbox_now
                                        AND w.started <= w.finished AND w.worker IS NOT NULL
                                    FOR UPDATE SKIP LOCKED
                                ) AS goes_on
                                FROM {open} AS e FORCE INDEX (PRIMARY)
                                WHERE e.handler = h.handler AND e.ordering_key = h.ordering_key
                                    AND e.seq > h.seq
                                ORDER BY e.handler, e.ordering_key, e.seq LIMIT {most_behind}
                                FOR UPDATE
                            ) AS behind
                        ) AS counted
                        WHERE ends = 0 AND place < LEAST(
                            {run_limit}, {limit} - i.taken - COALESCE(JSON_LENGTH(i.members), 1)
                        )
                    )), JSON_ARRAY(h.seq))
                ) */
                -- Each number takes as much room, which counts them. The condition fills the variable, and either end
                -- reads it.
                /*M! IF(
                    CHAR_LENGTH(@inbox_run := CONCAT('[', LPAD(h.seq, 20, ' '))) <> 21
                    OR h.vanished = 1 OR LEAST(
                        {run_limit}, {limit} - i.taken - COALESCE(JSON_LENGTH(i.members), 1)
                    ) < 2
                    OR (
                        SELECT 1 FROM {open} AS e FORCE INDEX (PRIMARY)
                        WHERE e.handler = h.handler AND e.ordering_key = h.ordering_key AND e.seq > h.seq
                            AND IF(
                                (
                                    SELECT 1 FROM {work} AS w FORCE INDEX (PRIMARY)
                                    WHERE w.seq = e.seq AND w.queue = 2 AND w.visible_at <= @inbox_now
                                        AND w.started <= w.finished AND w.worker IS NOT NULL
                                    FOR UPDATE SKIP LOCKED
                                ) IS NULL,
                                1,
                                CHAR_LENGTH(@inbox_run := CONCAT(@inbox_run, ',', LPAD(e.seq, 20, ' ')))
                                    >= 21 * LEAST(
                                        {run_limit}, {limit} - i.taken - COALESCE(JSON_LENGTH(i.members), 1)
                                    )
                            )
                        ORDER BY e.handler, e.ordering_key, e.seq LIMIT 1
                        FOR UPDATE
                    ) IS NULL,
                    CONCAT(@inbox_run, ']'), CONCAT(@inbox_run, ']')
                ) */
            FROM {ordering} AS o FORCE INDEX (PRIMARY)
            WHERE o.handler = h.handler AND o.ordering_key = h.ordering_key
            FOR UPDATE SKIP LOCKED
        )
        FROM in_order AS i STRAIGHT_JOIN heads AS h ON h.n = i.n + 1
        WHERE i.taken + COALESCE(JSON_LENGTH(i.members), 1) < {limit}
    )
    SELECT h.due, h.seq AS first, m.seq, h.lapsed, COUNT(*) OVER (PARTITION BY h.n) AS members
    FROM in_order AS i STRAIGHT_JOIN heads AS h ON h.n = i.n
    STRAIGHT_JOIN JSON_TABLE(
        COALESCE(i.members, CONCAT('[', h.seq, ']')), '$[*]' COLUMNS (seq BIGINT PATH '$')
    ) AS m
    WHERE i.members IS NOT NULL OR h.lapsed = 0 OR h.ordering_key IS NULL
) AS counted;

-- Parameters as in list.sql; $12 whether the payload must still be there. `leased` messages are
-- never eligible, and which others are is in $3.
--
-- OFFSET 0 makes the planner look each message up by its number, so that a page reads a page's worth
-- of rows whatever it believes about the tables' contents.
WITH clock AS MATERIALIZED (SELECT {fn:now}() AS instant)
SELECT seq FROM (
    (
        SELECT s.seq
        FROM clock, {work} AS s
        CROSS JOIN LATERAL (SELECT * FROM {message} AS m WHERE m.seq = s.seq OFFSET 0) AS m
        WHERE $10 AND s.seq > $1 AND {work_states}
          AND {filter}
          AND (NOT $12 OR m.payload IS NOT NULL)
        ORDER BY s.seq LIMIT $2
    )
    UNION ALL
    (
        SELECT s.seq
        FROM clock, {done} AS s
        CROSS JOIN LATERAL (SELECT * FROM {message} AS m WHERE m.seq = s.seq OFFSET 0) AS m
        WHERE $11 AND s.seq > $1 AND {done_states}
          AND {filter}
          AND (NOT $12 OR m.payload IS NOT NULL)
        ORDER BY s.seq LIMIT $2
    )
) AS found
ORDER BY seq LIMIT $2

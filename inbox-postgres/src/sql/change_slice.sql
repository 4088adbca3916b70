-- Changes a slice of the messages that the parameters select, which are those of list.sql; $22 whether
-- the payload must still be there, $23 whether to wake, $24 who signs; what else the change takes follows. `leased` messages are never eligible, and which
-- others are is in $3. Answers which were changed, how many were selected, and the last one's number.
--
-- OFFSET 0 makes the planner look each message up by its number, so that a page reads a page's worth
-- of rows whatever it believes about the tables' contents.
SELECT {change}, cardinality(selected), selected[cardinality(selected)]
FROM (
    SELECT ARRAY(
        WITH clock AS MATERIALIZED (SELECT {inbox}_now() AS instant)
        SELECT seq FROM (
            (
                SELECT s.seq
                FROM clock, {inbox}_work AS s
                CROSS JOIN LATERAL (SELECT * FROM {inbox}_message AS m WHERE m.seq = s.seq OFFSET 0) AS m
                WHERE $10 AND s.seq > $1 AND {work_states}
                  AND {filter}
                  AND (NOT $22 OR m.payload IS NOT NULL)
                ORDER BY s.seq LIMIT $2
            )
            UNION ALL
            (
                SELECT s.seq
                FROM clock, {inbox}_done AS s
                CROSS JOIN LATERAL (SELECT * FROM {inbox}_message AS m WHERE m.seq = s.seq OFFSET 0) AS m
                WHERE $11 AND s.seq > $1 AND {done_states}
                  AND {filter}
                  AND (NOT $22 OR m.payload IS NOT NULL)
                ORDER BY s.seq LIMIT $2
            )
        ) AS found
        ORDER BY seq LIMIT $2
    ) AS selected
    OFFSET 0
) AS slice

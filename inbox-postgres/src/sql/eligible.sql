-- Parameters as in list.sql; $12 whether the payload must still be there. `leased` messages are
-- never eligible, and which others are is in $3.
WITH clock AS MATERIALIZED (SELECT {fn:now}() AS instant)
SELECT seq FROM (
    (
        SELECT s.seq
        FROM clock, {work} AS s
        JOIN {message} AS m ON m.seq = s.seq
        WHERE $10 AND s.seq > $1 AND {work_states}
          AND {shown} = ANY ($3)
          AND {filter}
          AND (NOT $12 OR m.payload IS NOT NULL)
        ORDER BY s.seq LIMIT $2
    )
    UNION ALL
    (
        SELECT s.seq
        FROM clock, {done} AS s
        JOIN {message} AS m ON m.seq = s.seq
        WHERE $11 AND s.seq > $1 AND {done_states}
          AND s.state = ANY ($3)
          AND {filter}
          AND (NOT $12 OR m.payload IS NOT NULL)
        ORDER BY s.seq LIMIT $2
    )
) AS found
ORDER BY seq LIMIT $2

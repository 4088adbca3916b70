-- Parameters as in list.sql; $1, $2 and $12 do not matter.
WITH clock AS MATERIALIZED (SELECT {fn:now}() AS instant)
SELECT (
    SELECT count(*) FROM clock, {work} AS s
    JOIN {message} AS m ON m.seq = s.seq
    WHERE $10 AND s.seq > $1 AND $2 > 0 AND $12 AND {work_states}
      AND ($3::smallint[] IS NULL OR {shown} = ANY ($3))
      AND {filter}
) + (
    SELECT count(*) FROM clock, {done} AS s
    JOIN {message} AS m ON m.seq = s.seq
    WHERE $11 AND s.seq > $1 AND {done_states}
      AND ($3::smallint[] IS NULL OR s.state = ANY ($3))
      AND {filter}
)

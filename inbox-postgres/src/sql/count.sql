-- Parameters as in list.sql; $1, $2 and $22 do not matter.
WITH clock AS MATERIALIZED (SELECT {inbox}_now() AS instant)
SELECT (
    SELECT count(*) FROM clock, {inbox}_work AS s
    JOIN {inbox}_message AS m ON m.seq = s.seq
    WHERE $10 AND s.seq > $1 AND $2 > 0 AND $22 AND {work_states}
      AND {filter}
) + (
    SELECT count(*) FROM clock, {inbox}_done AS s
    JOIN {inbox}_message AS m ON m.seq = s.seq
    WHERE $11 AND s.seq > $1 AND {done_states}
      AND {filter}
)

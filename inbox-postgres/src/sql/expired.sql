-- $1 state, $2 finished at least this long ago (microseconds), $3 limit.
WITH clock AS MATERIALIZED (SELECT {inbox}_now() AS instant)
SELECT * FROM (
    (
        SELECT {columns}, s.blocks, s.visible_at, s.token, clock.instant, {payload_out},
            NULL::bytea
        FROM clock, {inbox}_work AS s
        JOIN {inbox}_message AS m ON m.seq = s.seq
        WHERE $1 = 3 AND s.state = 3
          AND s.finished_at <= (SELECT instant FROM clock) - $2 * interval '1 microsecond'
        ORDER BY s.finished_at, s.seq LIMIT $3
    )
    UNION ALL
    (
        SELECT {columns}, false, s.finished_at, s.token, clock.instant, {payload_out}, s.result
        FROM clock, {inbox}_done AS s
        JOIN {inbox}_message AS m ON m.seq = s.seq
        WHERE $1 <> 3 AND s.state = $1
          AND s.finished_at <= (SELECT instant FROM clock) - $2 * interval '1 microsecond'
        ORDER BY s.finished_at, s.seq LIMIT $3
    )
) AS found
ORDER BY finished_at, seq

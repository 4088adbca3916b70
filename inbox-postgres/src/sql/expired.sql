-- $1 state, $2 finished at least this long ago (microseconds), $3 limit, $4 handlers.
WITH clock AS MATERIALIZED (SELECT {inbox}_now() AS instant),
shares AS MATERIALIZED (
    SELECT g.* FROM clock CROSS JOIN LATERAL {inbox}_expired_shares(
        $1, clock.instant - $2 * interval '1 microsecond', $4, '{true,false}', $3
    ) AS g
)
SELECT * FROM (
    SELECT {columns}, s.blocks, s.visible_at, s.token, clock.instant, {payload_out}, NULL::bytea,
        s.history::text
    FROM clock, shares AS g
    CROSS JOIN LATERAL (
        SELECT s.* FROM {inbox}_work AS s
        WHERE $1 = 3 AND s.state = 3 AND s.handler = g.handler AND s.content = g.content
          AND s.finished_at <= clock.instant - $2 * interval '1 microsecond'
        ORDER BY s.finished_at, s.seq LIMIT g.share
    ) AS s
    -- One without its message is reported.
    LEFT JOIN LATERAL (SELECT * FROM {inbox}_message AS m WHERE m.seq = s.seq OFFSET 0) AS m ON true
    UNION ALL
    SELECT {columns}, false, s.finished_at, s.token, clock.instant, {payload_out}, s.result,
        s.history::text
    FROM clock, shares AS g
    CROSS JOIN LATERAL (
        SELECT s.* FROM {inbox}_done AS s
        WHERE $1 <> 3 AND s.state = $1 AND s.handler = g.handler AND s.content = g.content
          AND s.finished_at <= clock.instant - $2 * interval '1 microsecond'
        ORDER BY s.finished_at LIMIT g.share
    ) AS s
    LEFT JOIN LATERAL (SELECT * FROM {inbox}_message AS m WHERE m.seq = s.seq OFFSET 0) AS m ON true
) AS found
ORDER BY finished_at, seq

-- $1 behind this number, $2 limit, $3 shown states, $4 handler, $5 kind, $6 ordering key,
-- $7 accepted at least this long ago, $8 less than this long ago (microseconds), $9 error text,
-- $10 whether unfinished and dead messages are wanted, $11 whether finished ones are,
-- $12 with payload and result.
WITH clock AS MATERIALIZED (SELECT {fn:now}() AS instant)
SELECT * FROM (
    (
        SELECT {columns}, s.blocks, s.visible_at, s.token, clock.instant,
            CASE WHEN $12 THEN {payload_out} END, NULL::bytea
        FROM clock, {work} AS s
        JOIN {message} AS m ON m.seq = s.seq
        WHERE $10 AND s.seq {beyond} $1 AND {work_states}
          AND ($3::smallint[] IS NULL OR {shown} = ANY ($3))
          AND {filter}
        ORDER BY s.seq {direction} LIMIT $2
    )
    UNION ALL
    (
        SELECT {columns}, false, s.finished_at, s.token, clock.instant,
            CASE WHEN $12 THEN {payload_out} END, CASE WHEN $12 THEN s.result END
        FROM clock, {done} AS s
        JOIN {message} AS m ON m.seq = s.seq
        WHERE $11 AND s.seq {beyond} $1 AND {done_states}
          AND ($3::smallint[] IS NULL OR s.state = ANY ($3))
          AND {filter}
        ORDER BY s.seq {direction} LIMIT $2
    )
) AS found
ORDER BY seq {direction} LIMIT $2

-- $1 after this number, $2 limit, $3 shown states, $4 handler, $5 kind, $6 ordering key,
-- $7 accepted at least this long ago, $8 less than this long ago (microseconds), $9 error text,
-- $10 whether unfinished and dead messages are wanted, $11 whether finished ones are,
-- $12 ids, $13 correlation id, $14 finished at least this long ago, $15 less than this long ago, $16 due
-- later than this from now, $17 no later (microseconds), $18 at least so many attempts started, $19 how
-- the error begins, $20 at most so many attempts started, $21 only those that block their ordering key,
-- $22 with payload, result and history.
--
-- OFFSET 0 makes the planner look each message up by its number, so that a page reads a page's worth
-- of rows whatever it believes about the tables' contents.
WITH clock AS MATERIALIZED (SELECT {inbox}_now() AS instant)
SELECT * FROM (
    (
        SELECT {columns}, s.blocks, s.visible_at, s.token, clock.instant,
            CASE WHEN $22 THEN {payload_out} END, NULL::bytea,
            CASE WHEN $22 THEN s.history::text END
        FROM clock, {inbox}_work AS s
        -- One without its message is reported.
        LEFT JOIN LATERAL (SELECT * FROM {inbox}_message AS m WHERE m.seq = s.seq OFFSET 0) AS m ON true
        WHERE $10 AND s.seq {beyond} $1 AND {work_states}
          AND {filter}
        ORDER BY s.seq {direction} LIMIT $2
    )
    UNION ALL
    (
        SELECT {columns}, false, s.finished_at, s.token, clock.instant,
            CASE WHEN $22 THEN {payload_out} END, CASE WHEN $22 THEN s.result END,
            CASE WHEN $22 THEN s.history::text END
        FROM clock, {inbox}_done AS s
        CROSS JOIN LATERAL (SELECT * FROM {inbox}_message AS m WHERE m.seq = s.seq OFFSET 0) AS m
        WHERE $11 AND s.seq {beyond} $1 AND {done_states}
          AND {filter}
        ORDER BY s.seq {direction} LIMIT $2
    )
) AS found
ORDER BY seq {direction} LIMIT $2

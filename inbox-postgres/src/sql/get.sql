-- $1 handler, $2 id.
WITH clock AS MATERIALIZED (SELECT {inbox}_now() AS instant),
named AS MATERIALIZED (SELECT k.seq FROM {keys} AS k WHERE k.handler = $1 AND k.id = $2)
SELECT {columns}, s.blocks, s.visible_at, s.token, clock.instant, {payload_out}, NULL::bytea,
    s.history::text
FROM clock, named
JOIN {inbox}_work AS s ON s.seq = named.seq
JOIN {inbox}_message AS m ON m.seq = named.seq
UNION ALL
SELECT {columns}, false, s.finished_at, s.token, clock.instant, {payload_out}, s.result,
    s.history::text
FROM clock, named
JOIN {inbox}_done AS s ON s.seq = named.seq
JOIN {inbox}_message AS m ON m.seq = named.seq

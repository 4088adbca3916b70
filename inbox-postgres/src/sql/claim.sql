-- Leases up to `wanted` messages that are due, and returns them with their payloads, in the order
-- of `chosen`: each step walks the one before it, and a sort here would copy every payload.
--
-- Rows are changed by number, never by ctid: one that was changed while this waited for its lock is
-- only to be found by its number. The number is compared as an array's element, which leaves the
-- planner no choice but the index.
CREATE OR REPLACE FUNCTION {fn:claim}(
    handlers text[], wanted integer, lease bigint, worker text
) RETURNS TABLE (
    seq bigint, handler text, id text, kind text, content_type text, ordering_key text,
    headers text, accepted_at timestamptz, token bigint, started integer, finished integer,
    lease_until timestamptz, payload bytea
)
{pinned}
AS $$
#variable_conflict use_column
DECLARE
    instant timestamptz := {fn:now}();
    lease_end timestamptz := instant + lease * interval '1 microsecond';
    stamp bigint := (extract(epoch FROM instant) * 1000000)::bigint;
    holder text := worker;
    shares integer[] := ARRAY[wanted];
BEGIN
    {read_committed}
    IF cardinality(handlers) > 1 THEN
        -- How many of the longest due messages are each handler's. Those that others hold do not
        -- count: messages of one handler that a transaction holds must not keep those of another.
        SELECT array_agg(share ORDER BY place) INTO shares
        FROM (
            SELECT h.place, count(first.seq)::integer AS share
            FROM unnest(handlers) WITH ORDINALITY AS h (handler, place)
            LEFT JOIN (
                SELECT w.handler, w.seq
                FROM unnest(handlers) AS g (handler)
                CROSS JOIN LATERAL (
                    SELECT w.handler, w.visible_at, w.seq FROM {work} AS w
                    WHERE w.handler = g.handler AND w.claimable AND w.state = 0
                      AND w.visible_at <= instant
                    ORDER BY w.visible_at, w.seq LIMIT wanted
                    FOR UPDATE SKIP LOCKED
                ) AS w
                ORDER BY w.visible_at, w.seq LIMIT wanted
            ) AS first ON first.handler = h.handler
            GROUP BY h.place
        ) AS counted;
    END IF;

    RETURN QUERY
    WITH lost AS MATERIALIZED (
        SELECT w.seq, w.handler, w.state, w.visible_at
        FROM unnest(handlers) AS h (handler)
        CROSS JOIN LATERAL (
            SELECT w.seq, w.handler, w.state, w.visible_at FROM {work} AS w
            WHERE w.handler = h.handler AND w.claimable AND w.state = 1
              AND w.visible_at <= instant
            ORDER BY w.visible_at, w.seq LIMIT wanted
            FOR UPDATE SKIP LOCKED
        ) AS w
    ), waiting AS MATERIALIZED (
        SELECT w.seq, w.handler, w.state, w.visible_at
        FROM unnest(handlers, shares) AS h (handler, share)
        CROSS JOIN LATERAL (
            SELECT w.seq, w.handler, w.state, w.visible_at FROM {work} AS w
            WHERE w.handler = h.handler AND w.claimable AND w.state = 0
              AND w.visible_at <= instant
            ORDER BY w.visible_at, w.seq LIMIT h.share
            FOR UPDATE SKIP LOCKED
        ) AS w
    ), chosen AS MATERIALIZED (
        SELECT seq, handler, state, visible_at
        FROM (SELECT * FROM lost UNION ALL SELECT * FROM waiting) AS due
        ORDER BY visible_at, seq LIMIT wanted
    ), leased AS (
        UPDATE {work} AS w
        SET state = 1, visible_at = lease_end, token = greatest(w.token + 1, stamp),
            started = w.started + 1, worker = holder
        FROM chosen AS c
        WHERE w.seq = ANY (ARRAY[c.seq])
        RETURNING w.seq, w.token, w.started, w.finished
    ), counted AS (
        INSERT INTO {tally} (handler, pending, leased)
        SELECT handler, -count(*), count(*) FROM chosen WHERE state = 0 GROUP BY handler
    )
    SELECT l.seq, m.handler, m.id, m.kind, m.content_type, m.ordering_key, m.headers::text,
        m.accepted_at, l.token, l.started, l.finished, lease_end, m.payload
    FROM leased AS l
    -- One without its message is handed out as well, to be reported and set aside.
    LEFT JOIN LATERAL (
        SELECT m.handler, m.id, m.kind, m.content_type, m.ordering_key, m.headers,
            m.accepted_at, {payload_out} AS payload
        FROM {message} AS m
        WHERE m.seq = l.seq
        OFFSET 0
    ) AS m ON true;

    {fold_sometimes}
END
$$;

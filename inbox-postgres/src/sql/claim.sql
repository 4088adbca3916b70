-- Leases up to `wanted` messages that are due, and returns them with their payloads, in the order
-- of `chosen`: each step walks the one before it, and a sort here would copy every payload.
--
-- Pending messages are looked for from `pending_since` and leases that have run out from
-- `leased_since`, a time for each handler: `claim_cursor.sql` says why there are no earlier ones.
--
-- Rows are changed by number, never by ctid: one that was changed while this waited for its lock is
-- only to be found by its number. The number is compared as an array's element, which leaves the
-- planner no choice but the index.
CREATE OR REPLACE FUNCTION {inbox}_claim(
    handlers text[], pending_since timestamptz[], leased_since timestamptz[], wanted integer,
    lease bigint, worker text
) RETURNS TABLE (
    seq bigint, handler text, id text, kind text, content_type text, ordering_key text,
    headers text, accepted_at timestamptz, token bigint, started integer, finished integer,
    lease_until timestamptz, payload bytea, replays integer
)
{function_settings}
AS $$
#variable_conflict use_column
DECLARE
    instant timestamptz := {inbox}_now();
    lease_end timestamptz := instant + lease * interval '1 microsecond';
    stamp bigint := (extract(epoch FROM instant) * 1000000)::bigint;
    holder text := worker;
    shares integer[] := ARRAY[wanted];
    missing integer := wanted;
    taken integer;
BEGIN
    {require_read_committed}
    IF EXISTS (SELECT FROM {inbox}_paused) THEN
        SELECT array_agg(h.handler ORDER BY h.place), array_agg(h.pending ORDER BY h.place),
            array_agg(h.leased ORDER BY h.place)
        INTO handlers, pending_since, leased_since
        FROM unnest(handlers, pending_since, leased_since)
            WITH ORDINALITY AS h (handler, pending, leased, place)
        WHERE NOT EXISTS (SELECT FROM {inbox}_paused AS p WHERE p.handler = h.handler);
        IF handlers IS NULL THEN
            RETURN;
        END IF;
    END IF;
    IF cardinality(handlers) > 1 THEN
        -- How many of the longest due messages are each handler's, so that no more rows than
        -- wanted are locked.
        SELECT array_agg(share ORDER BY place) INTO shares
        FROM (
            SELECT h.place, count(first.seq)::integer AS share
            FROM unnest(handlers) WITH ORDINALITY AS h (handler, place)
            LEFT JOIN (
                SELECT w.handler, w.seq
                FROM unnest(handlers, pending_since) AS g (handler, since)
                CROSS JOIN LATERAL (
                    SELECT w.handler, w.visible_at, w.seq FROM {inbox}_work AS w
                    WHERE w.handler = g.handler AND w.claimable AND NOT w.late AND w.state = 0
                      AND w.visible_at >= g.since AND w.visible_at <= instant
                    ORDER BY w.visible_at, w.seq LIMIT wanted
                ) AS w
                ORDER BY w.visible_at, w.seq LIMIT wanted
            ) AS first ON first.handler = h.handler
            GROUP BY h.place
        ) AS counted;
    END IF;

    FOR round IN 1 .. 2 LOOP
        RETURN QUERY
        WITH lost AS MATERIALIZED (
            SELECT w.seq, w.handler, w.ordering_key, w.state, w.visible_at
            FROM unnest(handlers, leased_since) AS h (handler, since)
            CROSS JOIN LATERAL (
                SELECT w.seq, w.handler, w.ordering_key, w.state, w.visible_at
                FROM {inbox}_work AS w
                WHERE w.handler = h.handler AND w.claimable AND NOT w.late AND w.state = 1
                  AND w.visible_at >= h.since AND w.visible_at <= instant
                ORDER BY w.visible_at, w.seq LIMIT missing
                FOR UPDATE SKIP LOCKED
            ) AS w
        ), late AS MATERIALIZED (
            SELECT w.seq, w.handler, w.ordering_key, w.state, w.visible_at
            FROM unnest(handlers) AS h (handler)
            CROSS JOIN LATERAL (
                SELECT w.seq, w.handler, w.ordering_key, w.state, w.visible_at
                FROM {inbox}_work AS w
                WHERE w.handler = h.handler AND w.late AND w.visible_at <= instant
                ORDER BY w.visible_at, w.seq LIMIT missing
                FOR UPDATE SKIP LOCKED
            ) AS w
        ), waiting AS MATERIALIZED (
            SELECT w.seq, w.handler, w.ordering_key, w.state, w.visible_at
            FROM unnest(handlers, pending_since, shares) AS h (handler, since, share)
            CROSS JOIN LATERAL (
                SELECT w.seq, w.handler, w.ordering_key, w.state, w.visible_at
                FROM {inbox}_work AS w
                WHERE w.handler = h.handler AND w.claimable AND NOT w.late AND w.state = 0
                  AND w.visible_at >= h.since AND w.visible_at <= instant
                ORDER BY w.visible_at, w.seq LIMIT h.share
                FOR UPDATE SKIP LOCKED
            ) AS w
        ), chosen AS MATERIALIZED (
            SELECT seq, handler, ordering_key, state, visible_at
            FROM (
                SELECT * FROM lost UNION ALL SELECT * FROM late UNION ALL SELECT * FROM waiting
            ) AS due
            ORDER BY visible_at, seq LIMIT missing
        ), {end_runs}, leased AS (
            UPDATE {inbox}_work AS w
            SET state = 1, late = false, behind = false, visible_at = lease_end,
                token = greatest(w.token + 1, stamp), started = w.started + 1, leased_at = instant,
                worker = holder
            FROM chosen AS c
            WHERE w.seq = ANY (ARRAY[c.seq])
            RETURNING w.seq, w.token, w.started, w.finished, w.replays
        ), counted AS (
            INSERT INTO {inbox}_tally (handler, pending, leased)
            SELECT handler, -count(*), count(*) FROM chosen WHERE state = 0 GROUP BY handler
        )
        SELECT l.seq, m.handler, m.id, m.kind, m.content_type, m.ordering_key, m.headers::text,
            m.accepted_at, l.token, l.started, l.finished, lease_end, m.payload, l.replays
        FROM leased AS l
        -- One without its message is handed out as well, to be reported and set aside.
        LEFT JOIN LATERAL (
            SELECT m.handler, m.id, m.kind, m.content_type, m.ordering_key, m.headers,
                m.accepted_at, {payload_out} AS payload
            FROM {inbox}_message AS m
            WHERE m.seq = l.seq
            OFFSET 0
        ) AS m ON true;
        GET DIAGNOSTICS taken = ROW_COUNT;
        missing := missing - taken;
        EXIT WHEN missing = 0 OR cardinality(handlers) = 1
            OR wanted > (SELECT sum(share) FROM unnest(shares) AS s (share));
        -- Others hold some of the longest due. A transaction that holds messages of one handler
        -- must not keep those of another.
        shares := array_fill(missing, ARRAY[cardinality(handlers)]);
    END LOOP;

    {compact_counters_sometimes}
END
$$;

-- As `claim.sql`, and takes with the first message of an ordering key those that directly follow it, up to
-- `run_limit` in all: each pending, due, and without an attempt that was started and never finished.
-- Of a run it counts the attempt of the first message only; the answer has those of all.
--
-- How many first messages it takes to have `wanted` is not known beforehand, and each that is locked for
-- nothing keeps others from it. So this goes in rounds, each with as many as are needed if their runs
-- are as long as those before; the first assumes that all are of full length.
--
-- A claim has no lock on the ordering key. Who changes which message is first has to lock the one that is,
-- so behind that one, once it is locked here, the rest is locked and looked at one by one. One that
-- another transaction holds ends the run as one does that is not due.
CREATE OR REPLACE FUNCTION {inbox}_claim_runs(
    handlers text[], pending_since timestamptz[], leased_since timestamptz[], wanted integer,
    lease bigint, worker text, run_limit integer
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
    missing integer := wanted;
    -- How many first messages this round looks for.
    heads integer := 1 + (wanted - 1) / run_limit;
    -- How many of those it took, and how many messages with their runs.
    firsts integer;
    taken integer;
    shares integer[];
    past_others boolean := false;
    all_seqs bigint[] := '{}';
    all_tokens bigint[] := '{}';
    all_started integer[] := '{}';
    all_finished integer[] := '{}';
    all_replays integer[] := '{}';
    seqs bigint[];
    tokens bigint[];
    starts integer[];
    ends integer[];
    replay_counts integer[];
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

    LOOP
        shares := array_fill(heads, ARRAY[cardinality(handlers)]);
        IF cardinality(handlers) > 1 AND NOT past_others THEN
            -- How many of the longest due messages are each handler's.
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
                        ORDER BY w.visible_at, w.seq LIMIT heads
                    ) AS w
                    ORDER BY w.visible_at, w.seq LIMIT heads
                ) AS first ON first.handler = h.handler
                GROUP BY h.place
            ) AS counted;
        END IF;

        WITH lost AS MATERIALIZED (
            SELECT w.*
            FROM unnest(handlers, leased_since) AS h (handler, since)
            CROSS JOIN LATERAL (
                SELECT w.seq, w.handler, w.ordering_key, w.state, w.visible_at, w.started, w.finished
                FROM {inbox}_work AS w
                WHERE w.handler = h.handler AND w.claimable AND NOT w.late AND w.state = 1
                  AND w.visible_at >= h.since AND w.visible_at <= instant
                ORDER BY w.visible_at, w.seq LIMIT heads
                FOR UPDATE SKIP LOCKED
            ) AS w
        ), late AS MATERIALIZED (
            SELECT w.*
            FROM unnest(handlers) AS h (handler)
            CROSS JOIN LATERAL (
                SELECT w.seq, w.handler, w.ordering_key, w.state, w.visible_at, w.started, w.finished
                FROM {inbox}_work AS w
                WHERE w.handler = h.handler AND w.late AND w.visible_at <= instant
                ORDER BY w.visible_at, w.seq LIMIT heads
                FOR UPDATE SKIP LOCKED
            ) AS w
        ), waiting AS MATERIALIZED (
            SELECT w.*
            FROM unnest(handlers, pending_since, shares) AS h (handler, since, share)
            CROSS JOIN LATERAL (
                SELECT w.seq, w.handler, w.ordering_key, w.state, w.visible_at, w.started, w.finished
                FROM {inbox}_work AS w
                WHERE w.handler = h.handler AND w.claimable AND NOT w.late AND w.state = 0
                  AND w.visible_at >= h.since AND w.visible_at <= instant
                ORDER BY w.visible_at, w.seq LIMIT h.share
                FOR UPDATE SKIP LOCKED
            ) AS w
        ), candidates AS MATERIALIZED (
            SELECT *
            FROM (
                SELECT * FROM lost UNION ALL SELECT * FROM late UNION ALL SELECT * FROM waiting
            ) AS due
            ORDER BY visible_at, seq LIMIT heads
        ), runs AS MATERIALIZED (
            -- In the order of `candidates`, and no further than the limit.
            SELECT r.seq, c.handler, r.state, r.is_first, row_number() OVER () AS place
            FROM candidates AS c
            CROSS JOIN LATERAL (
                SELECT c.seq, c.state, true AS is_first
                UNION ALL
                (
                    SELECT f.seq, 0, false
                    FROM (
                        -- Of those behind it, how many up to each are not for this run.
                        SELECT w.seq, count(CASE WHEN l.seq IS NULL THEN 1 END)
                            OVER (ORDER BY w.seq ROWS UNBOUNDED PRECEDING) AS unfit
                        FROM (
                            SELECT w.seq FROM {inbox}_work AS w
                            WHERE c.started = c.finished
                              AND w.handler = c.handler AND w.ordering_key = c.ordering_key
                              AND w.ordering_key IS NOT NULL AND (w.state < 2 OR w.blocks)
                              AND w.seq > c.seq
                            ORDER BY w.seq LIMIT run_limit - 1
                        ) AS w
                        LEFT JOIN LATERAL (
                            SELECT l.seq FROM {inbox}_work AS l
                            WHERE l.seq = ANY (ARRAY[w.seq]) AND l.state = 0
                              AND l.visible_at <= instant AND l.started = l.finished
                            FOR UPDATE SKIP LOCKED
                        ) AS l ON true
                    ) AS f
                    WHERE f.unfit <= 0
                )
            ) AS r
            LIMIT missing
        ), chosen AS MATERIALIZED (
            SELECT c.seq, c.handler, c.ordering_key, c.state FROM candidates AS c
            WHERE c.seq IN (SELECT r.seq FROM runs AS r WHERE r.is_first)
        ), {end_runs}, leased AS (
            UPDATE {inbox}_work AS w
            SET state = 1, late = false, behind = NOT r.is_first, visible_at = lease_end,
                token = greatest(w.token + 1, stamp), started = w.started + r.is_first::integer,
                leased_at = instant, worker = holder
            FROM runs AS r
            WHERE w.seq = ANY (ARRAY[r.seq])
            RETURNING r.place, r.is_first, w.seq, w.token,
                w.started + w.behind::integer AS started, w.finished, w.replays
        ), counted AS (
            INSERT INTO {inbox}_tally (handler, pending, leased)
            SELECT handler, -count(*), count(*) FROM runs WHERE state = 0 GROUP BY handler
        )
        SELECT array_agg(seq ORDER BY place), array_agg(token ORDER BY place),
            array_agg(started ORDER BY place), array_agg(finished ORDER BY place),
            array_agg(replays ORDER BY place), count(*), count(*) FILTER (WHERE is_first)
        INTO seqs, tokens, starts, ends, replay_counts, taken, firsts
        FROM leased;
        IF taken > 0 THEN
            all_seqs := all_seqs || seqs;
            all_tokens := all_tokens || tokens;
            all_started := all_started || starts;
            all_finished := all_finished || ends;
            all_replays := all_replays || replay_counts;
            missing := missing - taken;
        END IF;
        EXIT WHEN missing = 0;
        IF firsts < heads THEN
            EXIT WHEN cardinality(handlers) = 1 OR past_others
                OR heads > (SELECT sum(share) FROM unnest(shares) AS s (share));
            -- Others hold some of the longest due. A transaction that holds messages of one handler
            -- must not keep those of another.
            past_others := true;
        END IF;
        IF taken > 0 THEN
            heads := least(missing, 1 + missing::bigint * firsts / taken);
        END IF;
    END LOOP;

    RETURN QUERY
    SELECT l.seq, m.handler, m.id, m.kind, m.content_type, m.ordering_key, m.headers::text,
        m.accepted_at, l.token, l.started, l.finished, lease_end, m.payload, l.replays
    FROM unnest(all_seqs, all_tokens, all_started, all_finished, all_replays)
        AS l (seq, token, started, finished, replays)
    -- One without its message is handed out as well, to be reported and set aside.
    LEFT JOIN LATERAL (
        SELECT m.handler, m.id, m.kind, m.content_type, m.ordering_key, m.headers,
            m.accepted_at, {payload_out} AS payload
        FROM {inbox}_message AS m
        WHERE m.seq = l.seq
        OFFSET 0
    ) AS m ON true;

    {compact_counters_sometimes}
END
$$;

-- Ends leases. The arrays are in order of numbers, which is the one order in which rows are
-- locked. Outcomes: -1 deferral and 1 retry, both after a delay (in microseconds), 0 release,
-- 2 processed, 3 dead. Those up to 0 take the start of the attempt back. What is leased behind
-- others of its run has none counted so far, and has it now. In which order the caller settles several
-- does not matter: what comes next of an ordering key follows from what is left.
-- `applied` are the places, counted from 1, of the leases that stood; `repeated` those of leases
-- that were settled before and not claimed since. `short_errors` are what the histories keep of the
-- errors; NULL where it is all of them. `alone`: not within a longer transaction of the
-- caller's; `patience`, for so many milliseconds at most it then waits for each lock, if there is a
-- limit.
--
-- Rows are changed by number, never by ctid: one that was changed while this waited for its lock is
-- only to be found by its number. The number is compared as an array's element, which leaves the
-- planner no choice but the index.
CREATE OR REPLACE FUNCTION {inbox}_settle(
    seqs bigint[], tokens bigint[], outcomes smallint[], delays bigint[], errors text[],
    short_errors text[], blocking boolean[], results bytea[],
    any_ordered boolean, drop_payloads boolean, wake boolean, alone boolean, patience integer,
    OUT applied bigint[], OUT repeated bigint[]
)
{function_settings}
AS $$
#variable_conflict use_column
DECLARE
    -- Before the time: see `claim_cursor.sql`.
    number xid8 := pg_current_xact_id();
    instant timestamptz;
    ordered_handlers text[];
    ordered_keys text[];
    promoted bigint := 0;
    returned boolean;
BEGIN
    IF alone THEN
        {require_read_committed}
        IF patience IS NOT NULL THEN
            PERFORM set_config('lock_timeout', patience::text, true);
        END IF;
    END IF;
    IF any_ordered THEN
        SELECT k.handlers, k.ordering_keys INTO ordered_handlers, ordered_keys
        FROM {inbox}_lock_keys_of(seqs) AS k;
    END IF;

    instant := {inbox}_now();
    IF 2 = ALL (outcomes) THEN
        -- As most are: to delete a row is to lock it, so each is visited once. Where some are
        -- kept, all are locked first, since deletions and updates would each lock in their own turn.
        WITH gone AS (
            DELETE FROM {inbox}_work AS w
            USING unnest(seqs, tokens, results)
                WITH ORDINALITY AS g (seq, token, result, place)
            WHERE w.seq = ANY (ARRAY[g.seq]) AND w.token = g.token AND w.state = 1
            RETURNING g.place, g.result, w.seq, w.handler, w.due_at, w.leased_at, w.token,
                w.started + w.behind::integer AS started, w.finished, w.replays, w.worker,
                w.last_error, w.history
        ), finished AS (
            INSERT INTO {inbox}_done (
                seq, due_at, leased_at, finished_at, token, started, finished, replays, state,
                content, handler, worker, last_error, result, history
            )
            SELECT seq, due_at, leased_at, instant, token, started, finished + 1, replays, 2,
                NOT drop_payloads OR result IS NOT NULL, handler, worker, last_error, result,
                history
            FROM gone
        ), counted AS (
            INSERT INTO {inbox}_tally (handler, leased, processed)
            SELECT handler, -count(*), count(*) FROM gone GROUP BY handler
        )
        SELECT array_agg(place) INTO applied FROM gone;
    ELSE
        WITH held AS MATERIALIZED (
            SELECT g.place, g.outcome, g.delay, g.error, g.short_error, g.blocks, g.result, w.*
            FROM unnest(
                seqs, tokens, outcomes, delays, errors, short_errors, blocking, results
            ) WITH ORDINALITY
                AS g (seq, token, outcome, delay, error, short_error, blocks, result, place)
            CROSS JOIN LATERAL (
                SELECT w.seq, w.handler, w.ordering_key, w.due_at, w.leased_at, w.token,
                    w.started + w.behind::integer AS started, w.finished, w.replays, w.worker,
                    w.last_error, w.history, w.claimable
                FROM {inbox}_work AS w
                WHERE w.seq = g.seq AND w.token = g.token AND w.state = 1
                FOR UPDATE
            ) AS w
        ), gone AS (
            DELETE FROM {inbox}_work
            WHERE seq = ANY (ARRAY(SELECT seq FROM held WHERE outcome = 2))
        ), finished AS (
            INSERT INTO {inbox}_done (
                seq, due_at, leased_at, finished_at, token, started, finished, replays, state,
                content, handler, worker, last_error, result, history
            )
            SELECT seq, due_at, leased_at, instant, token, started, finished + 1, replays, 2,
                NOT drop_payloads OR result IS NOT NULL, handler, worker, last_error, result,
                history
            FROM held
            WHERE outcome = 2
        ), kept AS (
            UPDATE {inbox}_work AS w
            SET state = CASE WHEN h.outcome = 3 THEN 3 ELSE 0 END,
                claimable = h.outcome < 2 AND h.claimable,
                late = h.outcome = 0 AND h.claimable,
                behind = false,
                blocks = h.outcome = 3 AND h.blocks AND h.ordering_key IS NOT NULL,
                due_at = due.at,
                visible_at = due.at,
                finished_at = CASE WHEN h.outcome = 3 THEN instant END,
                started = CASE WHEN h.outcome <= 0 THEN greatest(h.started - 1, 0) ELSE h.started END,
                finished = CASE WHEN h.outcome <= 0 THEN h.finished ELSE h.finished + 1 END,
                last_error = coalesce(h.error, h.last_error),
                history = CASE WHEN h.error IS NULL THEN w.history ELSE
                    jsonb_path_query_array(
                        coalesce(w.history, '[]') || jsonb_build_array(jsonb_build_object(
                            'attempt', h.started, 'replays', h.replays, 'worker', h.worker,
                            'leased_at', (extract(epoch FROM h.leased_at) * 1000000)::bigint,
                            'ended_at', (extract(epoch FROM instant) * 1000000)::bigint,
                            'end', CASE h.outcome
                                WHEN 1 THEN 'retried' WHEN 3 THEN 'dead' ELSE 'deferred'
                            END,
                            'error', coalesce(h.short_error, h.error)
                        )),
                        '$[last - {kept_entries} + 1 to last]'
                    )
                END
            FROM held AS h
            CROSS JOIN LATERAL (
                SELECT coalesce(instant + h.delay * interval '1 microsecond', h.due_at) AS at
            ) AS due
            WHERE h.outcome <> 2 AND w.seq = ANY (ARRAY[h.seq])
        ), counted AS (
            INSERT INTO {inbox}_tally (handler, leased, pending, processed, dead)
            SELECT handler, -count(*), count(*) FILTER (WHERE outcome < 2),
                count(*) FILTER (WHERE outcome = 2), count(*) FILTER (WHERE outcome = 3)
            FROM held
            GROUP BY handler
        )
        SELECT array_agg(place), bool_or(outcome < 2) INTO applied, returned FROM held;
    END IF;

    IF ordered_handlers IS NOT NULL THEN
        promoted := {inbox}_promote_key_heads(ordered_handlers, ordered_keys);
    END IF;
    IF drop_payloads AND applied IS NOT NULL THEN
        UPDATE {inbox}_message AS m SET payload = NULL
        FROM unnest(applied) AS a (place)
        WHERE outcomes[a.place] = 2 AND m.seq = ANY (ARRAY[seqs[a.place]]);
    END IF;
    IF cardinality(applied) IS DISTINCT FROM cardinality(seqs) THEN
        SELECT array_agg(g.place) INTO repeated
        FROM unnest(seqs, tokens) WITH ORDINALITY AS g (seq, token, place)
        WHERE g.place <> ALL (coalesce(applied, '{}'))
          AND (
              EXISTS (
                  SELECT FROM {inbox}_work AS w
                  WHERE w.seq = g.seq AND w.token = g.token AND w.state <> 1
              )
              OR EXISTS (SELECT FROM {inbox}_done AS d WHERE d.seq = g.seq AND d.token = g.token)
          );
        {rest_on_others}
        -- What this transaction sees may be older than a lease that it does not find. Tokens only
        -- grow, so one that is lost or settled by what is seen is so for good.
        IF current_setting('transaction_isolation') <> 'read committed' AND EXISTS (
            SELECT FROM unnest(seqs, tokens) WITH ORDINALITY AS g (seq, token, place)
            WHERE g.place <> ALL (coalesce(applied, '{}'))
              AND NOT EXISTS (
                  SELECT FROM {inbox}_work AS w
                  WHERE w.seq = g.seq
                    AND (w.token > g.token OR (w.token = g.token AND w.state <> 1))
              )
              AND NOT EXISTS (
                  SELECT FROM {inbox}_done AS d WHERE d.seq = g.seq AND d.token >= g.token
              )
        ) THEN
            RAISE EXCEPTION 'a lease is younger than what the transaction sees'
                USING ERRCODE = 'serialization_failure';
        END IF;
    END IF;
    IF wake AND (returned OR promoted > 0) THEN
        PERFORM pg_notify('{channel}', '');
    END IF;
    {compact_counters_sometimes}
END
$$;

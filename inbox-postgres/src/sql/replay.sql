-- Makes final messages pending again, with a new payload and new headers if they are given. Passes over messages in
-- other states than `states` and those whose payload was dropped. Returns the numbers of those it
-- changed.
CREATE OR REPLACE FUNCTION {inbox}_replay(
    seqs bigint[], states smallint[], new_payload {payload}, new_headers text, wake boolean,
    signed_by text
) RETURNS bigint[]
{function_settings}
AS $$
#variable_conflict use_column
DECLARE
    -- Before the time: see `claim_cursor.sql`.
    number xid8 := pg_current_xact_id();
    instant timestamptz := {inbox}_now();
    ordered_handlers text[];
    ordered_keys text[];
    replayed bigint[];
    intervention text := CASE
        WHEN new_payload IS NULL AND new_headers IS NULL THEN 'replayed' ELSE 'edited'
    END;
BEGIN
    {require_read_committed}
    SELECT array_agg(m.handler), array_agg(m.ordering_key)
    INTO ordered_handlers, ordered_keys
    FROM unnest(seqs) AS g (seq)
    CROSS JOIN LATERAL (
        SELECT m.handler, m.ordering_key FROM {inbox}_message AS m
        WHERE m.seq = g.seq AND m.ordering_key IS NOT NULL
        OFFSET 0
    ) AS m;
    IF ordered_handlers IS NOT NULL THEN
        PERFORM {inbox}_lock_keys(ordered_handlers, ordered_keys);
    END IF;

    -- Locked first, so that the next statement sees whether a payload was dropped while this waited.
    PERFORM FROM unnest(seqs) AS g (seq)
    CROSS JOIN LATERAL (
        SELECT FROM {inbox}_work AS w
        WHERE w.seq = g.seq AND w.state = 3 AND 3 = ANY (states)
        FOR UPDATE
    ) AS w;
    PERFORM FROM unnest(seqs) AS g (seq)
    CROSS JOIN LATERAL (
        SELECT FROM {inbox}_done AS d
        WHERE d.seq = g.seq AND d.state = ANY (states)
        FOR UPDATE
    ) AS d;
    WITH wanted AS MATERIALIZED (
        SELECT m.seq, m.handler, m.ordering_key
        FROM unnest(seqs) AS g (seq)
        CROSS JOIN LATERAL (
            SELECT m.seq, m.handler, m.ordering_key FROM {inbox}_message AS m
            WHERE m.seq = g.seq AND (m.payload IS NOT NULL OR new_payload IS NOT NULL)
            OFFSET 0
        ) AS m
    ), dead AS MATERIALIZED (
        SELECT w.seq, w.handler
        FROM wanted AS g
        CROSS JOIN LATERAL (
            SELECT w.seq, w.handler FROM {inbox}_work AS w
            WHERE w.seq = g.seq AND w.state = 3 AND 3 = ANY (states)
            FOR UPDATE
        ) AS w
    ), revived AS (
        UPDATE {inbox}_work AS w
        SET state = 0, claimable = w.ordering_key IS NULL, blocks = false, content = true,
            visible_at = instant, due_at = instant, finished_at = NULL,
            started = 0, finished = 0, replays = w.replays + 1, last_error = NULL,
            history = {signed}
        WHERE w.seq = ANY (ARRAY(SELECT seq FROM dead))
    ), finished AS MATERIALIZED (
        SELECT d.*, g.handler, g.ordering_key
        FROM wanted AS g
        CROSS JOIN LATERAL (
            SELECT d.seq, d.state, d.leased_at, d.token, d.replays, d.worker, d.history
            FROM {inbox}_done AS d
            WHERE d.seq = g.seq AND d.state = ANY (states)
            FOR UPDATE
        ) AS d
    ), gone AS (
        DELETE FROM {inbox}_done AS d USING finished AS f WHERE d.seq = ANY (ARRAY[f.seq])
    ), again AS (
        INSERT INTO {inbox}_work (
            seq, visible_at, due_at, leased_at, token, started, finished, replays, state, claimable,
            blocks, handler, ordering_key, worker, history
        )
        SELECT seq, instant, instant, leased_at, token, 0, 0, replays + 1, 0, ordering_key IS NULL,
            false, handler, ordering_key, worker,
            {signed}
        FROM finished
    ), changed AS (
        SELECT seq, handler, 3 AS state FROM dead
        UNION ALL
        SELECT seq, handler, state FROM finished
    ), counted AS (
        INSERT INTO {inbox}_tally (handler, pending, processed, dead, discarded)
        SELECT handler, count(*), -count(*) FILTER (WHERE state = 2),
            -count(*) FILTER (WHERE state = 3), -count(*) FILTER (WHERE state = 4)
        FROM changed
        GROUP BY handler
    )
    SELECT array_agg(seq) INTO replayed FROM changed;

    IF new_payload IS NOT NULL OR new_headers IS NOT NULL THEN
        UPDATE {inbox}_message AS m
        SET payload = coalesce(new_payload, m.payload),
            headers = coalesce(new_headers::json, m.headers)
        FROM unnest(replayed) AS g (seq)
        WHERE m.seq = ANY (ARRAY[g.seq]);
    END IF;
    IF ordered_handlers IS NOT NULL THEN
        PERFORM {inbox}_promote_key_heads(ordered_handlers, ordered_keys);
    END IF;
    IF wake AND replayed IS NOT NULL THEN
        PERFORM pg_notify('{channel}', '');
    END IF;
    {compact_counters_sometimes}
    RETURN coalesce(replayed, '{}');
END
$$;

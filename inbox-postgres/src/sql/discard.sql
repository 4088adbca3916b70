-- Gives up pending and dead messages, those of the two that are among `states`. A lease that has run out gets a new token, so that its
-- holder is told so when it settles. Returns the numbers of those it changed.
CREATE OR REPLACE FUNCTION {inbox}_discard(
    seqs bigint[], states smallint[], wake boolean, signed_by text
) RETURNS bigint[]
{function_settings}
AS $$
#variable_conflict use_column
DECLARE
    instant timestamptz;
    intervention text := 'discarded';
    stamp bigint;
    ordered_handlers text[];
    ordered_keys text[];
    changed bigint[];
    promoted bigint := 0;
BEGIN
    {require_read_committed}
    -- From the messages, which do not change: a key that is emptied and filled again meanwhile is
    -- locked all the same.
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
    instant := {inbox}_now();
    stamp := (extract(epoch FROM instant) * 1000000)::bigint;

    WITH given_up AS MATERIALIZED (
        SELECT w.*
        FROM unnest(seqs) AS g (seq)
        CROSS JOIN LATERAL (
            SELECT w.* FROM {inbox}_work AS w
            WHERE w.seq = g.seq
              AND CASE w.state
                  WHEN 0 THEN 0 = ANY (states)
                  WHEN 1 THEN 0 = ANY (states) AND w.visible_at <= instant
                  ELSE 3 = ANY (states)
              END
            FOR UPDATE
        ) AS w
    ), gone AS (
        DELETE FROM {inbox}_work WHERE seq = ANY (ARRAY(SELECT seq FROM given_up))
    ), kept AS (
        INSERT INTO {inbox}_done (
            seq, due_at, leased_at, finished_at, token, started, finished, replays, state, content,
            handler, worker, last_error, history
        )
        SELECT seq, due_at, leased_at, instant,
            CASE WHEN state = 1 THEN greatest(token + 1, stamp) ELSE token END,
            started, finished, replays, 4, content, handler, worker, last_error,
            {signed}
        FROM given_up
    ), counted AS (
        INSERT INTO {inbox}_tally (handler, pending, leased, dead, discarded)
        SELECT handler, -count(*) FILTER (WHERE state = 0), -count(*) FILTER (WHERE state = 1),
            -count(*) FILTER (WHERE state = 3), count(*)
        FROM given_up
        GROUP BY handler
    )
    SELECT array_agg(seq) INTO changed FROM given_up;

    IF ordered_handlers IS NOT NULL THEN
        promoted := {inbox}_promote_key_heads(ordered_handlers, ordered_keys);
    END IF;
    IF wake AND promoted > 0 THEN
        PERFORM pg_notify('{channel}', '');
    END IF;
    {compact_counters_sometimes}
    RETURN coalesce(changed, '{}');
END
$$;

-- Makes pending messages due at another time. A lease that has run out gets a new token, so that its
-- holder is told so when it settles. Returns the numbers of those it changed.
CREATE OR REPLACE FUNCTION {inbox}_reschedule(
    seqs bigint[], new_due_at timestamptz, delay bigint, wake boolean, signed_by text
) RETURNS bigint[]
{function_settings}
AS $$
#variable_conflict use_column
DECLARE
    -- Before the time: see `claim_cursor.sql`.
    number xid8 := pg_current_xact_id();
    instant timestamptz;
    intervention text := 'rescheduled';
    due timestamptz;
    stamp bigint;
    ordered_handlers text[];
    ordered_keys text[];
    changed bigint[];
    promoted bigint := 0;
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
    instant := {inbox}_now();
    stamp := (extract(epoch FROM instant) * 1000000)::bigint;
    due := greatest(instant, coalesce(new_due_at, instant + delay * interval '1 microsecond'));

    WITH chosen AS MATERIALIZED (
        SELECT w.seq, w.handler, w.ordering_key, w.state
        FROM unnest(seqs) AS g (seq)
        CROSS JOIN LATERAL (
            SELECT w.seq, w.handler, w.ordering_key, w.state FROM {inbox}_work AS w
            WHERE w.seq = g.seq
              AND (w.state = 0 OR (w.state = 1 AND w.visible_at <= instant))
            FOR UPDATE
        ) AS w
    ), {end_runs}, moved AS (
        -- Not late: it is due no earlier than now.
        UPDATE {inbox}_work AS w
        SET state = 0, late = false, behind = false, visible_at = due, due_at = due,
            token = CASE WHEN w.state = 1 THEN greatest(w.token + 1, stamp) ELSE w.token END,
            history = {signed}
        WHERE w.seq = ANY (ARRAY(SELECT seq FROM chosen))
    ), counted AS (
        INSERT INTO {inbox}_tally (handler, pending, leased)
        SELECT handler, count(*), -count(*) FROM chosen WHERE state = 1 GROUP BY handler
    )
    SELECT array_agg(seq) INTO changed FROM chosen;

    -- Without a lease, one that an earlier message of its key has come back to is not the first.
    IF ordered_handlers IS NOT NULL THEN
        promoted := {inbox}_promote_key_heads(ordered_handlers, ordered_keys);
    END IF;
    IF wake AND ((changed IS NOT NULL AND due <= instant) OR promoted > 0) THEN
        PERFORM pg_notify('{channel}', '');
    END IF;
    {compact_counters_sometimes}
    RETURN coalesce(changed, '{}');
END
$$;

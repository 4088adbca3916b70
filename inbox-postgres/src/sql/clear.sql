-- Deletes messages and their keys, in any state but under a lease that has not run out. Returns the
-- numbers of those it deleted.
CREATE OR REPLACE FUNCTION {inbox}_clear(seqs bigint[], wake boolean) RETURNS bigint[]
{function_settings}
AS $$
#variable_conflict use_column
DECLARE
    instant timestamptz;
    ordered_handlers text[];
    ordered_keys text[];
    cleared bigint[];
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

    WITH unfinished AS MATERIALIZED (
        SELECT w.seq, w.handler, w.state
        FROM unnest(seqs) AS g (seq)
        CROSS JOIN LATERAL (
            SELECT w.seq, w.handler, w.state FROM {inbox}_work AS w
            WHERE w.seq = g.seq AND (w.state <> 1 OR w.visible_at <= instant)
            FOR UPDATE
        ) AS w
    ), finished AS MATERIALIZED (
        SELECT d.seq, d.handler, d.state
        FROM unnest(seqs) AS g (seq)
        CROSS JOIN LATERAL (
            SELECT d.seq, d.handler, d.state FROM {inbox}_done AS d WHERE d.seq = g.seq
            FOR UPDATE
        ) AS d
    ), found AS MATERIALIZED (
        SELECT * FROM unfinished UNION ALL SELECT * FROM finished
    ), not_waiting AS (
        DELETE FROM {inbox}_work WHERE seq = ANY (ARRAY(SELECT seq FROM unfinished))
    ), not_kept AS (
        DELETE FROM {inbox}_done AS d USING finished AS f WHERE d.seq = ANY (ARRAY[f.seq])
    ), gone AS (
        DELETE FROM {inbox}_message AS m
        USING found AS f
        WHERE m.seq = ANY (ARRAY[f.seq])
        RETURNING m.handler, m.id
    ),
    -- {if partitioned}
    forgotten AS (
        DELETE FROM {keys} AS k
        USING gone AS g
        WHERE k.handler = ANY (ARRAY[g.handler]) AND k.id = ANY (ARRAY[g.id])
    ),
    -- {end}
    counted AS (
        INSERT INTO {inbox}_tally (handler, pending, leased, processed, dead, discarded)
        SELECT handler, -count(*) FILTER (WHERE state = 0), -count(*) FILTER (WHERE state = 1),
            -count(*) FILTER (WHERE state = 2), -count(*) FILTER (WHERE state = 3),
            -count(*) FILTER (WHERE state = 4)
        FROM found
        GROUP BY handler
    )
    SELECT array_agg(seq) INTO cleared FROM found;

    IF ordered_handlers IS NOT NULL THEN
        promoted := {inbox}_promote_key_heads(ordered_handlers, ordered_keys);
    END IF;
    IF wake AND promoted > 0 THEN
        PERFORM pg_notify('{channel}', '');
    END IF;
    {compact_counters_sometimes}
    RETURN coalesce(cleared, '{}');
END
$$;

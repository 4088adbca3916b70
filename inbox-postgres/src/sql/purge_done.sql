-- Deletes finished messages that the caller has locked. Returns how many.
CREATE OR REPLACE FUNCTION {inbox}_purge_done(final_state smallint, old bigint[]) RETURNS bigint
{function_settings}
AS $$
#variable_conflict use_column
DECLARE
    purged bigint;
BEGIN
    WITH gone AS (
        DELETE FROM {inbox}_message AS m
        USING unnest(old) AS g (seq)
        WHERE m.seq = ANY (ARRAY[g.seq])
        RETURNING m.handler, m.id
    ),
    -- {if partitioned}
    forgotten AS (
        DELETE FROM {keys} AS k
        USING gone AS g
        WHERE k.handler = ANY (ARRAY[g.handler]) AND k.id = ANY (ARRAY[g.id])
    ),
    -- {end}
    finished AS (
        DELETE FROM {inbox}_done AS d
        USING unnest(old) AS g (seq)
        WHERE d.seq = ANY (ARRAY[g.seq])
        RETURNING d.handler
    ), counted AS (
        INSERT INTO {inbox}_tally (handler, processed, discarded)
        SELECT handler, CASE WHEN final_state = 2 THEN -count(*) ELSE 0 END,
            CASE WHEN final_state = 4 THEN -count(*) ELSE 0 END
        FROM finished
        GROUP BY handler
    )
    SELECT count(*) INTO purged FROM finished;
    {compact_counters_sometimes}
    RETURN purged;
END
$$;

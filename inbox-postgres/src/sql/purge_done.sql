-- Deletes finished messages that the caller has locked. Returns how many.
CREATE OR REPLACE FUNCTION {fn:purge_done}(final_state smallint, old bigint[]) RETURNS bigint
{pinned}
AS $$
#variable_conflict use_column
DECLARE
    purged bigint;
BEGIN
    WITH gone AS (
        DELETE FROM {message} AS m
        USING unnest(old) AS g (seq)
        WHERE m.seq = ANY (ARRAY[g.seq])
        RETURNING m.handler, m.id
    ), {forget_keys}finished AS (
        DELETE FROM {done} AS d USING unnest(old) AS g (seq) WHERE d.seq = ANY (ARRAY[g.seq])
    ), counted AS (
        INSERT INTO {tally} (handler, processed, discarded)
        SELECT handler, CASE WHEN final_state = 2 THEN -count(*) ELSE 0 END,
            CASE WHEN final_state = 4 THEN -count(*) ELSE 0 END
        FROM gone
        GROUP BY handler
    )
    SELECT count(*) INTO purged FROM gone;
    PERFORM {fn:fold}();
    RETURN purged;
END
$$;

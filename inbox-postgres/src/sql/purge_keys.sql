-- Deletes those of the given messages that have been in a final state for `age` microseconds.
-- Returns how many.
CREATE OR REPLACE FUNCTION {inbox}_purge_keys(
    final_state smallint, age bigint, handlers text[], ids text[], wake boolean
) RETURNS bigint
{function_settings}
AS $$
#variable_conflict use_column
DECLARE
    finished_before timestamptz := {inbox}_now() - age * interval '1 microsecond';
    named bigint[] := ARRAY(
        SELECT m.seq
        FROM unnest(handlers, ids) AS k (handler, id)
        CROSS JOIN LATERAL (
            SELECT m.seq FROM {keys} AS m WHERE m.handler = k.handler AND m.id = k.id
            OFFSET 0
        ) AS m
        ORDER BY m.seq
    );
    old bigint[];
BEGIN
    {require_read_committed}
    IF final_state = 3 THEN
        SELECT array_agg(seq) INTO old
        FROM (
            SELECT w.seq FROM {inbox}_work AS w
            WHERE w.seq = ANY (named) AND w.state = 3 AND w.finished_at <= finished_before
            FOR UPDATE SKIP LOCKED
        ) AS w;
        RETURN {inbox}_purge_dead(old, wake);
    END IF;
    SELECT array_agg(d.seq) INTO old
    FROM unnest(named) AS g (seq)
    CROSS JOIN LATERAL (
        SELECT d.seq FROM {inbox}_done AS d
        WHERE d.seq = g.seq AND d.state = final_state AND d.finished_at <= finished_before
        FOR UPDATE
    ) AS d;
    RETURN {inbox}_purge_done(final_state, old);
END
$$;

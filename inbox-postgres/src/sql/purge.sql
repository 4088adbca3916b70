-- Deletes up to `wanted` messages that have been in a final state for `age` microseconds, the
-- longest finished first, passing over those that others are working on. Returns how many it
-- found, and how many of them it could delete.
CREATE OR REPLACE FUNCTION {inbox}_purge(
    final_state smallint, age bigint, wanted integer, wake boolean,
    OUT chosen bigint, OUT purged bigint
)
{function_settings}
AS $$
#variable_conflict use_column
DECLARE
    finished_before timestamptz := {inbox}_now() - age * interval '1 microsecond';
    old bigint[];
BEGIN
    {require_read_committed}
    IF final_state = 3 THEN
        SELECT array_agg(seq) INTO old
        FROM (
            SELECT w.seq FROM {inbox}_work AS w
            WHERE w.state = 3 AND w.finished_at <= finished_before
            ORDER BY w.finished_at, w.seq LIMIT wanted
            FOR UPDATE SKIP LOCKED
        ) AS w;
        chosen := coalesce(cardinality(old), 0);
        purged := {inbox}_purge_dead(old, wake);
        RETURN;
    END IF;
    SELECT array_agg(seq) INTO old
    FROM (
        SELECT d.seq FROM {inbox}_done AS d
        WHERE d.state = final_state AND d.finished_at <= finished_before
        ORDER BY d.finished_at, d.seq LIMIT wanted
        FOR UPDATE SKIP LOCKED
    ) AS d;
    chosen := coalesce(cardinality(old), 0);
    purged := {inbox}_purge_done(final_state, old);
END
$$;

-- Deletes up to `wanted` messages of the handlers that have been in a final state for `age` microseconds,
-- the longest finished first, passing over those that others are working on. Returns how many it found, and
-- how many of them it could delete. `ends`: when there are no more, the purge is at its end.
CREATE OR REPLACE FUNCTION {inbox}_purge(
    final_state smallint, age bigint, handlers text[], wanted integer, wake boolean, ends boolean,
    OUT chosen bigint, OUT purged bigint
)
{function_settings}
AS $$
#variable_conflict use_column
DECLARE
    old bigint[];
BEGIN
    {require_read_committed}
    old := {inbox}_lock_expired(
        final_state, {inbox}_now() - age * interval '1 microsecond', handlers, '{true,false}',
        wanted
    );
    chosen := coalesce(cardinality(old), 0);
    IF final_state = 3 THEN
        purged := {inbox}_purge_dead(old, wake);
    ELSE
        purged := {inbox}_purge_done(final_state, old);
    END IF;
    -- Once a purge rather than with each slice, which would read again what vacuum may not remove.
    IF ends AND chosen < wanted THEN
        PERFORM {inbox}_compact_counters();
    END IF;
END
$$;

-- Takes one closed partition out of its tables whose messages have all been in `final_state` for
-- `age` microseconds and are all of `only_handler` if one is given, unless it has no more than `few` of
-- them left, but not none. Returns whether there was one.
--
-- For a moment nobody may use the tables. What uses them already is waited for, as long as
-- `lock_timeout` says; nobody can then be putting a message of that partition back to work.
CREATE OR REPLACE FUNCTION {inbox}_drop_partition(
    final_state smallint, age bigint, only_handler text, few integer
) RETURNS boolean
{function_settings}
SET lock_timeout = '{lock_timeout}'
AS $$
#variable_conflict use_column
DECLARE
    finished_before timestamptz := {inbox}_now() - age * interval '1 microsecond';
    current bigint;
    candidate bigint;
BEGIN
    {require_read_committed}
    IF NOT pg_try_advisory_xact_lock({partition_lock}) THEN
        RETURN false;
    END IF;
    SELECT s.last_value / {width} INTO current FROM {inbox}_seq AS s;
    FOR candidate IN
        SELECT p.number FROM {inbox}_partition AS p
        WHERE p.number < current AND p.dropped_state IS NULL
        ORDER BY p.number
    LOOP
        CONTINUE WHEN NOT {inbox}_is_over(candidate, final_state, finished_before, only_handler, few);
        LOCK TABLE ONLY {inbox}_message, ONLY {inbox}_done IN ACCESS EXCLUSIVE MODE;
        IF {inbox}_is_over(candidate, final_state, finished_before, only_handler, few) THEN
            EXECUTE format(
                'ALTER TABLE {inbox}_message DETACH PARTITION {schema}.%I',
                '{prefix}_message_' || candidate
            );
            EXECUTE format(
                'ALTER TABLE {inbox}_done DETACH PARTITION {schema}.%I', '{prefix}_done_' || candidate
            );
            UPDATE {inbox}_partition SET dropped_state = final_state WHERE number = candidate;
        END IF;
        RETURN true;
    END LOOP;
    RETURN false;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$$;

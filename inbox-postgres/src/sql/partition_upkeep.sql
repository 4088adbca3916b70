-- Makes the next partition if there is none, or else makes it the current one if the current one
-- is older than `period` microseconds: never both in one transaction, so that a partition can be
-- seen by everybody before anything is put into it. Returns whether it did either; then there may
-- be more to do.
--
-- The one after the next is made before the next one begins. A session that reads the list of
-- partitions while one is attached may miss that one, until it is told of another: the one that
-- begins is never the last that was attached.
CREATE OR REPLACE FUNCTION {inbox}_partition_upkeep(period bigint) RETURNS boolean
{function_settings}
SET lock_timeout = '{lock_timeout}'
AS $$
#variable_conflict use_column
DECLARE
    instant timestamptz := {inbox}_now();
    current bigint;
    used boolean;
    began timestamptz;
    made boolean := false;
BEGIN
    {require_read_committed}
    IF NOT (
        SELECT pg_has_role(c.relowner, 'USAGE') FROM pg_class AS c
        WHERE c.oid = '{inbox}_message'::regclass
    ) THEN
        RAISE EXCEPTION 'only the owner of the tables can make and drop partitions'
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    IF NOT pg_try_advisory_xact_lock({partition_lock}) THEN
        RETURN false;
    END IF;
    SELECT s.last_value / {width}, s.is_called INTO current, used FROM {inbox}_seq AS s;

    FOR wanted IN current .. current + 1 LOOP
        IF NOT EXISTS (SELECT FROM {inbox}_partition AS p WHERE p.number = wanted) THEN
            PERFORM {inbox}_make_partition(wanted);
            made := true;
        END IF;
    END LOOP;
    IF made THEN
        RETURN true;
    END IF;

    SELECT p.begins_at INTO began FROM {inbox}_partition AS p WHERE p.number = current;
    IF began IS NULL THEN
        -- The sequence got there by itself, or the transaction that moved it failed.
        UPDATE {inbox}_partition SET begins_at = instant WHERE number = current;
    ELSIF began <= instant - period * interval '1 microsecond' THEN
        IF NOT used THEN
            -- Nothing was received since: as good as new.
            UPDATE {inbox}_partition SET begins_at = instant WHERE number = current;
        ELSIF NOT EXISTS (SELECT FROM {inbox}_partition AS p WHERE p.number = current + 2) THEN
            PERFORM {inbox}_make_partition(current + 2);
            RETURN true;
        ELSE
            UPDATE {inbox}_partition SET begins_at = instant WHERE number = current + 1;
            PERFORM setval('{inbox}_seq', (current + 1) * {width}, false);
            RETURN true;
        END IF;
    END IF;
    RETURN false;
END
$$;

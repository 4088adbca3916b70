-- Sums the rows of the tally up, unless another session is just doing it.
CREATE OR REPLACE FUNCTION {inbox}_compact_counters() RETURNS void
{function_settings}
AS $$
BEGIN
    IF pg_try_advisory_xact_lock({tally_lock}) THEN
        WITH old AS (
            DELETE FROM {inbox}_tally RETURNING handler, pending, leased, processed, dead, discarded
        )
        INSERT INTO {inbox}_tally (handler, pending, leased, processed, dead, discarded)
        SELECT handler, sum(pending), sum(leased), sum(processed), sum(dead), sum(discarded)
        FROM old
        GROUP BY handler
        HAVING (sum(pending), sum(leased), sum(processed), sum(dead), sum(discarded))
            <> (0, 0, 0, 0, 0);
    END IF;
END
$$;

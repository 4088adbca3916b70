-- Sums the rows of the tally up, unless somebody else is just doing it.
CREATE OR REPLACE FUNCTION {fn:fold}() RETURNS void
{pinned}
AS $$
BEGIN
    IF pg_try_advisory_xact_lock({tally_lock}) THEN
        WITH old AS (
            DELETE FROM {tally} RETURNING handler, pending, leased, processed, dead, discarded
        )
        INSERT INTO {tally} (handler, pending, leased, processed, dead, discarded)
        SELECT handler, sum(pending), sum(leased), sum(processed), sum(dead), sum(discarded)
        FROM old
        GROUP BY handler
        HAVING (sum(pending), sum(leased), sum(processed), sum(dead), sum(discarded))
            <> (0, 0, 0, 0, 0);
    END IF;
END
$$;

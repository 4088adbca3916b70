-- For each handler, in their order: since when the longest due message is due, and when the first
-- lease ran out that has, of those since `pending_since` and `leased_since`. Then when that was so,
-- below which number all transactions were over (`running`), and below which number everybody was
-- who had asked for the time before (`next`). Once those are all over, claims need not look at
-- anything earlier than both.
--
-- The index entries of messages that were claimed stay until vacuum removes them, which it may not
-- while anybody's snapshot is older. What this rests on: who makes an entry has a transaction
-- number before it asks for the time, and enters nothing earlier than that. So does this, the other
-- way round: its own number, drawn after its time, is above those of all who may have entered
-- something earlier that is not seen here. A snapshot does not tell: its upper end is the number
-- after the last transaction that has ended, and there may be open ones from there on.
CREATE OR REPLACE FUNCTION {inbox}_claim_cursor(
    handlers text[], pending_since timestamptz[], leased_since timestamptz[]
) RETURNS TABLE (
    first_pending timestamptz, first_leased timestamptz, instant timestamptz, running bigint,
    next bigint
)
{function_settings}
AS $$
#variable_conflict use_column
DECLARE
    current timestamptz := {inbox}_now();
    -- After the time. A number costs no write to disk.
    own bigint := pg_current_xact_id()::text::bigint;
BEGIN
    {require_read_committed}
    RETURN QUERY
    SELECT
        (
            SELECT w.visible_at FROM {inbox}_work AS w
            WHERE w.handler = h.handler AND w.claimable AND NOT w.late AND w.state = 0
              AND w.visible_at >= h.pending_since AND w.visible_at <= current
            ORDER BY w.visible_at LIMIT 1
        ),
        (
            SELECT w.visible_at FROM {inbox}_work AS w
            WHERE w.handler = h.handler AND w.claimable AND NOT w.late AND w.state = 1
              AND w.visible_at >= h.leased_since AND w.visible_at <= current
            ORDER BY w.visible_at LIMIT 1
        ),
        current,
        pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
        own
    FROM unnest(handlers, pending_since, leased_since)
        WITH ORDINALITY AS h (handler, pending_since, leased_since, place)
    ORDER BY h.place;
END
$$;

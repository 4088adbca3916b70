-- Locks ordering keys, in one order, and says which of them had no unfinished message. The caller
-- is about to add one.
CREATE OR REPLACE FUNCTION {fn:lock_keys}(handlers text[], ordering_keys text[])
RETURNS TABLE (handler text, ordering_key text, fresh boolean)
{pinned}
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    INSERT INTO {ordering} AS o (handler, ordering_key, changes)
    SELECT DISTINCT k.handler, k.ordering_key, 1
    FROM unnest(handlers, ordering_keys) AS k (handler, ordering_key)
    ORDER BY k.handler, k.ordering_key
    ON CONFLICT (handler, ordering_key) DO UPDATE SET changes = o.changes + 1
    RETURNING o.handler, o.ordering_key, o.changes = 1;
END
$$;

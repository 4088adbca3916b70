-- Locks ordering keys, in one order, and says which of them had no unfinished message. The caller
-- is about to add one.
CREATE OR REPLACE FUNCTION {inbox}_lock_keys(handlers text[], ordering_keys text[])
RETURNS TABLE (handler text, ordering_key text, fresh boolean)
{function_settings}
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    INSERT INTO {inbox}_ordering AS o (handler, ordering_key, changes)
    -- By bytes, like every other sort of keys, whatever the database's collation.
    SELECT DISTINCT k.handler COLLATE "C", k.ordering_key COLLATE "C", 1
    FROM unnest(handlers, ordering_keys) AS k (handler, ordering_key)
    ORDER BY 1, 2
    ON CONFLICT (handler, ordering_key) DO UPDATE SET changes = o.changes + 1
    RETURNING o.handler, o.ordering_key, o.changes = 1;
END
$$;

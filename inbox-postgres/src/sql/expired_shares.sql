-- How the up to `wanted` messages that have been in a final state for longest, no later than since
-- `finished_before`, are shared out: how many there are of each of the handlers, with content and
-- without; `contents` says which of the two are wanted. What looks for them then locks no more rows than
-- those, of no more handlers than those. It reads up to `wanted` of each handler: callers give a few.
CREATE OR REPLACE FUNCTION {inbox}_expired_shares(
    final_state smallint, finished_before timestamptz, handlers text[], contents boolean[],
    wanted integer
) RETURNS TABLE (handler text, content boolean, share integer)
{function_settings}
AS $$
#variable_conflict use_column
BEGIN
    IF cardinality(handlers) = 1 AND cardinality(contents) = 1 THEN
        RETURN QUERY SELECT handlers[1], contents[1], wanted;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT first.handler, first.content, count(*)::integer
    FROM (
        SELECT h.handler, c.content
        FROM unnest(handlers) AS h (handler)
        CROSS JOIN unnest(contents) AS c (content)
        CROSS JOIN LATERAL (
            (
                SELECT w.finished_at FROM {inbox}_work AS w
                WHERE final_state = 3 AND w.state = 3 AND w.handler = h.handler
                  AND w.content = c.content AND w.finished_at <= finished_before
                ORDER BY w.finished_at LIMIT wanted
            )
            UNION ALL
            (
                SELECT d.finished_at FROM {inbox}_done AS d
                WHERE final_state <> 3 AND d.state = final_state AND d.handler = h.handler
                  AND d.content = c.content AND d.finished_at <= finished_before
                ORDER BY d.finished_at LIMIT wanted
            )
        ) AS old
        ORDER BY old.finished_at LIMIT wanted
    ) AS first
    GROUP BY first.handler, first.content;
END
$$;

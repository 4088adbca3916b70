-- The handlers that have messages which have been in a final state for `age` microseconds, the one with the
-- longest finished first. `contents` as in `expired_shares.sql`.
CREATE OR REPLACE FUNCTION {inbox}_expired_handlers(
    final_state smallint, age bigint, contents boolean[]
) RETURNS TABLE (handler text)
{function_settings}
AS $$
#variable_conflict use_column
DECLARE
    finished_before timestamptz := {inbox}_now() - age * interval '1 microsecond';
BEGIN
    RETURN QUERY
    SELECT h.handler
    FROM (SELECT DISTINCT t.handler FROM {inbox}_tally AS t) AS h
    CROSS JOIN unnest(contents) AS c (content)
    CROSS JOIN LATERAL (
        (
            SELECT w.finished_at FROM {inbox}_work AS w
            WHERE final_state = 3 AND w.state = 3 AND w.handler = h.handler
              AND w.content = c.content AND w.finished_at <= finished_before
            ORDER BY w.finished_at LIMIT 1
        )
        UNION ALL
        (
            SELECT d.finished_at FROM {inbox}_done AS d
            WHERE final_state <> 3 AND d.state = final_state AND d.handler = h.handler
              AND d.content = c.content AND d.finished_at <= finished_before
            ORDER BY d.finished_at LIMIT 1
        )
    ) AS first
    GROUP BY h.handler
    ORDER BY min(first.finished_at);
END
$$;

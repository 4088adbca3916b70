-- Locks up to `wanted` messages that have been in a final state since `finished_before` or longer, the
-- longest finished first, passing over those that others are working on, and returns their numbers;
-- without any, NULL. What the other arguments mean is in `expired_shares.sql`.
CREATE OR REPLACE FUNCTION {inbox}_lock_expired(
    final_state smallint, finished_before timestamptz, handlers text[], contents boolean[],
    wanted integer
) RETURNS bigint[]
{function_settings}
AS $$
#variable_conflict use_column
DECLARE
    old bigint[];
BEGIN
    IF final_state = 3 THEN
        SELECT array_agg(w.seq) INTO old
        FROM {inbox}_expired_shares(final_state, finished_before, handlers, contents, wanted) AS g
        CROSS JOIN LATERAL (
            SELECT w.seq FROM {inbox}_work AS w
            WHERE w.state = 3 AND w.handler = g.handler AND w.content = g.content
              AND w.finished_at <= finished_before
            ORDER BY w.finished_at, w.seq LIMIT g.share
            FOR UPDATE SKIP LOCKED
        ) AS w;
    ELSE
        SELECT array_agg(d.seq) INTO old
        FROM {inbox}_expired_shares(final_state, finished_before, handlers, contents, wanted) AS g
        CROSS JOIN LATERAL (
            SELECT d.seq FROM {inbox}_done AS d
            WHERE d.state = final_state AND d.handler = g.handler AND d.content = g.content
              AND d.finished_at <= finished_before
            ORDER BY d.finished_at LIMIT g.share
            FOR UPDATE SKIP LOCKED
        ) AS d;
    END IF;
    RETURN old;
END
$$;

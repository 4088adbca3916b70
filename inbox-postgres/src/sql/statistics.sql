-- Counts by handler, of what is due up to `due_counted`, and the message that has been due for longest. `lost`: leases that have run
-- out, which count as pending. What is leased is claimable and not late, or behind.
CREATE OR REPLACE FUNCTION {inbox}_statistics(due_counted bigint)
RETURNS TABLE (
    handler text, pending bigint, leased bigint, processed bigint, dead bigint,
    discarded bigint, lost bigint, blocking bigint, due_since timestamptz, accepted_at timestamptz,
    instant timestamptz, paused boolean, due bigint
)
{function_settings}
AS $$
#variable_conflict use_column
DECLARE
    current timestamptz := {inbox}_now();
BEGIN
    RETURN QUERY
    SELECT c.handler, c.pending, c.leased, c.processed, c.dead, c.discarded, lost.n,
        blocking.n, due.visible_at, due.accepted_at, current,
        EXISTS (SELECT FROM {inbox}_paused AS p WHERE p.handler = c.handler), claimable.n
    FROM (
        SELECT t.handler, sum(t.pending)::bigint AS pending, sum(t.leased)::bigint AS leased,
            sum(t.processed)::bigint AS processed, sum(t.dead)::bigint AS dead,
            sum(t.discarded)::bigint AS discarded
        FROM {inbox}_tally AS t
        GROUP BY t.handler
        HAVING sum(t.pending + t.leased + t.processed + t.dead + t.discarded) > 0
    ) AS c
    CROSS JOIN LATERAL (
        SELECT (
            SELECT count(*) FROM {inbox}_work AS w
            WHERE w.handler = c.handler AND w.claimable AND NOT w.late AND w.state = 1
              AND w.visible_at <= current
        ) + (
            SELECT count(*) FROM {inbox}_work AS w
            WHERE w.handler = c.handler AND w.behind AND w.visible_at <= current
        ) AS n
    ) AS lost
    CROSS JOIN LATERAL (
        SELECT count(*) AS n FROM {inbox}_work AS w
        WHERE w.handler = c.handler AND w.blocks AND NOT w.behind
    ) AS blocking
    CROSS JOIN LATERAL (
        SELECT count(*) AS n
        FROM (
            (
                SELECT FROM {inbox}_work AS w
                WHERE w.handler = c.handler AND w.claimable AND NOT w.late AND w.state = 0
                  AND w.visible_at <= current
                LIMIT due_counted
            )
            UNION ALL
            (
                SELECT FROM {inbox}_work AS w
                WHERE w.handler = c.handler AND w.late AND w.visible_at <= current
                LIMIT due_counted
            )
            UNION ALL
            (
                SELECT FROM {inbox}_work AS w
                WHERE w.handler = c.handler AND w.claimable AND NOT w.late AND w.state = 1
                  AND w.visible_at <= current
                LIMIT due_counted
            )
            LIMIT due_counted
        ) AS first_due
    ) AS claimable
    LEFT JOIN LATERAL (
        SELECT first.visible_at, m.accepted_at
        FROM (
            (
                SELECT w.visible_at, w.seq FROM {inbox}_work AS w
                WHERE w.handler = c.handler AND w.claimable AND NOT w.late AND w.state = 0
                  AND w.visible_at <= current
                ORDER BY w.visible_at, w.seq LIMIT 1
            )
            UNION ALL
            (
                SELECT w.visible_at, w.seq FROM {inbox}_work AS w
                WHERE w.handler = c.handler AND w.late AND w.visible_at <= current
                ORDER BY w.visible_at, w.seq LIMIT 1
            )
            UNION ALL
            (
                SELECT w.visible_at, w.seq FROM {inbox}_work AS w
                WHERE w.handler = c.handler AND w.claimable AND NOT w.late AND w.state = 1
                  AND w.visible_at <= current
                ORDER BY w.visible_at, w.seq LIMIT 1
            )
            ORDER BY visible_at, seq LIMIT 1
        ) AS first
        CROSS JOIN LATERAL (
            SELECT m.accepted_at FROM {inbox}_message AS m WHERE m.seq = first.seq OFFSET 0
        ) AS m
    ) AS due ON true
    ORDER BY c.handler COLLATE "C";
END
$$;

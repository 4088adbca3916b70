-- ?1 now, ?2 up to how many due messages are counted. The message that has been due for longest stands at the
-- head of the claim index.
WITH c AS MATERIALIZED (
    SELECT n.*,
        (
            SELECT count(*) FROM {inbox}_state AS l
            WHERE l.state = 1 AND l.handler = n.handler AND l.lease_until > ?1
        ) AS leased,
        (
            SELECT count(*) FROM {inbox}_state AS b
            WHERE b.blocks = 1 AND b.handler = n.handler
        ) AS blocking,
        (
            SELECT count(*) FROM (
                SELECT 1 FROM {inbox}_state AS q
                WHERE q.claimable = 1 AND q.handler = n.handler AND q.visible_at <= ?1
                LIMIT ?2
            ) AS first_due
        ) AS due_counted,
        (
            SELECT q.seq FROM {inbox}_state AS q
            WHERE q.claimable = 1 AND q.handler = n.handler AND q.visible_at <= ?1
            ORDER BY q.visible_at, q.seq LIMIT 1
        ) AS due
    FROM {inbox}_count AS n
    WHERE n.unfinished + n.processed + n.dead + n.discarded > 0
)
SELECT c.handler, c.unfinished - c.leased, c.leased, c.processed, c.dead, c.discarded,
    d.visible_at, m.accepted_at, c.blocking,
    EXISTS (SELECT 1 FROM {inbox}_paused AS p WHERE p.handler = c.handler), c.due_counted
FROM c
LEFT JOIN {inbox}_state AS d ON d.seq = c.due
LEFT JOIN {inbox}_message AS m ON m.seq = c.due

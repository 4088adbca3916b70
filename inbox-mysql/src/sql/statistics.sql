-- Counts by handler from the tally; what is leased (bounded by the workers, not by the backlog)
-- from the claim index, and so are what has been due for longest and how many are due, up to a number
-- (a subquery with LIMIT that counts cannot name the handler).
SELECT c.handler, c.backlog, c.processed, c.dead, c.discarded,
    (
        SELECT COUNT(*) FROM {work} AS l FORCE INDEX (claim)
        WHERE l.handler = c.handler AND l.queue = 1 AND l.visible_at > @inbox_now
    ) + (
        SELECT COUNT(*) FROM {work} AS l FORCE INDEX (claim)
        WHERE l.handler = c.handler AND l.queue = 3 AND l.visible_at > @inbox_now
    ),
    p.visible_at, p.seq, pm.accepted_at, l.visible_at, l.seq, lm.accepted_at,
    (
        SELECT COUNT(*) FROM {dead} AS d FORCE INDEX (blocking)
        WHERE d.blocks = 1 AND d.handler = c.handler
    ),
    EXISTS (SELECT 1 FROM {paused} AS h WHERE h.handler = c.handler), c.waiting_due + c.lost_due
FROM (
    SELECT t.handler, SUM(t.backlog) AS backlog, SUM(t.processed) AS processed,
        SUM(t.dead) AS dead, SUM(t.discarded) AS discarded,
        (
            SELECT q.seq FROM {work} AS q FORCE INDEX (claim)
            WHERE q.handler = t.handler AND q.queue = 0 AND q.visible_at <= @inbox_now
            ORDER BY q.handler, q.queue, q.visible_at, q.seq LIMIT 1
        ) AS waiting,
        (
            SELECT q.seq FROM {work} AS q FORCE INDEX (claim)
            WHERE q.handler = t.handler AND q.queue = 1 AND q.visible_at <= @inbox_now
            ORDER BY q.handler, q.queue, q.visible_at, q.seq LIMIT 1
        ) AS lost,
        COALESCE(
            (
                SELECT {due_counted} FROM {work} AS q FORCE INDEX (claim)
                WHERE q.handler = t.handler AND q.queue = 0 AND q.visible_at <= @inbox_now
                ORDER BY q.handler, q.queue, q.visible_at, q.seq LIMIT 1 OFFSET {due_counted}
            ),
            (
                SELECT COUNT(*) FROM {work} AS q FORCE INDEX (claim)
                WHERE q.handler = t.handler AND q.queue = 0 AND q.visible_at <= @inbox_now
            )
        ) AS waiting_due,
        (
            SELECT COUNT(*) FROM {work} AS q FORCE INDEX (claim)
            WHERE q.handler = t.handler AND q.queue = 1 AND q.visible_at <= @inbox_now
        ) AS lost_due
    FROM {tally} AS t
    GROUP BY t.handler
    HAVING SUM(t.backlog) + SUM(t.processed) + SUM(t.dead) + SUM(t.discarded) > 0
) AS c
LEFT JOIN {work} AS p FORCE INDEX (PRIMARY) ON p.seq = c.waiting
LEFT JOIN {message} AS pm FORCE INDEX (PRIMARY) ON pm.seq = c.waiting
LEFT JOIN {work} AS l FORCE INDEX (PRIMARY) ON l.seq = c.lost
LEFT JOIN {message} AS lm FORCE INDEX (PRIMARY) ON lm.seq = c.lost
{all_rows};

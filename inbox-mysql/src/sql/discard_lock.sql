-- Locks the unfinished and dead messages of @inbox_seqs, and keeps in it those that no lease
-- holds.
SELECT w.seq FROM {seqs} AS j STRAIGHT_JOIN {work} AS w ON w.seq = j.seq FOR UPDATE;
SELECT d.seq FROM {seqs} AS j STRAIGHT_JOIN {dead} AS d ON d.seq = j.seq FOR UPDATE;
SET @inbox_picked = NULL;
{agg} SELECT JSON_ARRAYAGG(seq) INTO @inbox_picked
FROM (
    SELECT j.seq
    FROM {seqs} AS j
    LEFT JOIN {work} AS w ON w.seq = j.seq
    LEFT JOIN {dead} AS d ON d.seq = j.seq
    WHERE d.seq IS NOT NULL OR w.queue <> 1 OR w.visible_at <= @inbox_now
) AS t;
SET @inbox_seqs = @inbox_picked;

-- Locks the messages of @inbox_seqs, and keeps in it those that are pending now.
SET @inbox_picked = NULL;
{agg} SELECT JSON_ARRAYAGG(seq) INTO @inbox_picked
FROM (
    SELECT w.seq
    FROM {seqs} AS j STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq
    WHERE w.queue NOT IN (1, 3) OR w.visible_at <= @inbox_now
    FOR UPDATE /*!80000 OF w */
) AS t;
SET @inbox_seqs = @inbox_picked;

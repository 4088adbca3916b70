-- Extends the leases in @inbox_held that stand, past rows that other transactions hold: the others
-- must not run out meanwhile. One whose turn in its run came when its lease had run out is counted as an
-- attempt now.
SET @inbox_picked = NULL;
{agg} SELECT JSON_ARRAYAGG(JSON_ARRAY(seq, token)) INTO @inbox_picked
FROM (
    SELECT w.seq, w.token
    FROM {held} AS j
    STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq AND w.token = j.token
    WHERE w.queue IN (1, 3)
    FOR UPDATE /*!80000 OF w */ SKIP LOCKED
) AS t;
UPDATE {picked} AS j
STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq AND w.token = j.token
SET w.visible_at = @inbox_now + @inbox_length,
    w.started = w.started + (w.queue = 1 AND w.started <= w.finished)
WHERE w.queue IN (1, 3);

-- Locks the rows of the leases in @inbox_held that stand, and keeps those.
SET @inbox_picked = NULL;
{agg} SELECT JSON_ARRAYAGG(JSON_ARRAY(seq, token)) INTO @inbox_picked
FROM (
    SELECT w.seq, w.token
    FROM {held} AS j
    STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq AND w.token = j.token
    WHERE w.queue = 1
    FOR UPDATE /*!80000 OF w */{skip}
) AS t;
SET @inbox_held = @inbox_picked;

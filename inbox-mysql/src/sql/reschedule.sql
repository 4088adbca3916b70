-- Makes the pending messages of @inbox_seqs due at another time, and keeps in it those that are pending when
-- they are locked. A lease that has run out gets a new token, so that its holder is told so when it settles.
SET @inbox_picked = NULL;
{agg} SELECT JSON_ARRAYAGG(seq) INTO @inbox_picked
FROM (
    SELECT w.seq
    FROM {seqs} AS j STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq
    WHERE w.queue <> 1 OR w.visible_at <= @inbox_now
    FOR UPDATE /*!80000 OF w */
) AS t;
SET @inbox_seqs = @inbox_picked;
UPDATE {seqs} AS j STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq
SET w.token = GREATEST(w.token + 1, @inbox_now)
WHERE w.queue = 1;
UPDATE {seqs} AS j STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq
SET w.queue = IF(w.queue = 1, IF(w.ordering_key IS NULL, 0, 2), w.queue),
    w.due_at = {due},
    w.visible_at = {due};

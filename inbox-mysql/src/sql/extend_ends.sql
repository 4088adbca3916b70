-- The ends of the leases in @inbox_held that were extended, and of those that were not because
-- another transaction holds their rows, as far as they have not run out. Without locks for that.
SELECT w.seq, w.token, w.visible_at
FROM {held} AS j
STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq AND w.token = j.token
WHERE w.queue IN (1, 3) AND w.visible_at > @inbox_now
{all_rows};

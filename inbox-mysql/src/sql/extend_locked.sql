UPDATE {held} AS j
STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq AND w.token = j.token
SET w.visible_at = @inbox_now + @inbox_length
WHERE w.queue = 1;
SELECT j.seq, j.token, @inbox_now + @inbox_length FROM {held} AS j;

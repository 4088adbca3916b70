-- The messages of @inbox_seqs whose leases have run out are about to be taken or put off: those behind them
-- in their runs lose their leases, and with them their turn. Otherwise they would come before that message
-- when it is tried again. By their worker they are known not to make a run again.
UPDATE {seqs} AS j
STRAIGHT_JOIN {work} AS f FORCE INDEX (PRIMARY) ON f.seq = j.seq
STRAIGHT_JOIN {run} AS r FORCE INDEX (PRIMARY)
    ON r.handler = f.handler AND r.ordering_key = f.ordering_key AND r.seq > f.seq
STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = r.seq
SET w.queue = 2, w.worker = NULL, w.token = GREATEST(w.token + 1, @inbox_now),
    w.visible_at = LEAST(w.visible_at, @inbox_now)
WHERE f.queue IN ({queues}) AND f.visible_at <= @inbox_now AND w.queue = 3;
DELETE r
FROM {seqs} AS j
STRAIGHT_JOIN {work} AS f FORCE INDEX (PRIMARY) ON f.seq = j.seq
STRAIGHT_JOIN {run} AS r FORCE INDEX (PRIMARY)
    ON r.handler = f.handler AND r.ordering_key = f.ordering_key AND r.seq >= f.seq
WHERE f.queue IN ({queues}) AND f.visible_at <= @inbox_now;

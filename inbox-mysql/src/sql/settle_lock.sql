-- Locks the rows in order of seq, and answers which leases stand.
SELECT w.seq, w.token, w.queue, w.ordering_key IS NOT NULL
FROM {settled} AS j STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq
{all_rows} FOR UPDATE /*!80000 OF w */;

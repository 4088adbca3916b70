-- Which of the rows in @inbox_seqs no other transaction has locked, and then of which of them the ordering keys
-- are free. Waits for none.
SELECT w.seq FROM {seqs} AS j STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq
{all_rows} FOR UPDATE /*!80000 OF w */ SKIP LOCKED;
SELECT m.seq
FROM {seqs} AS j
STRAIGHT_JOIN {message} AS m FORCE INDEX (PRIMARY) ON m.seq = j.seq
STRAIGHT_JOIN {ordering} AS o FORCE INDEX (PRIMARY)
    ON o.handler = m.handler AND o.ordering_key = m.ordering_key
{all_rows} FOR UPDATE /*!80000 OF o */ SKIP LOCKED;

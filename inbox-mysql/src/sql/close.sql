DELETE e
FROM {seqs} AS j
STRAIGHT_JOIN {message} AS m FORCE INDEX (PRIMARY) ON m.seq = j.seq
STRAIGHT_JOIN {open} AS e FORCE INDEX (PRIMARY)
    ON e.handler = m.handler AND e.ordering_key = m.ordering_key AND e.seq = m.seq;

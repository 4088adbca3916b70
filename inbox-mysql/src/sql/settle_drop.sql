UPDATE {settled} AS j
STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq AND w.token = j.token
STRAIGHT_JOIN {message} AS m FORCE INDEX (PRIMARY) ON m.seq = j.seq
SET m.payload = NULL, m.payload_bytes = NULL
WHERE w.queue IN (1, 3) AND j.outcome = 2;

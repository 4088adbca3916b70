INSERT INTO {tally} (handler, backlog, processed, dead, discarded)
SELECT w.handler, -COUNT(*), SUM(j.outcome = 2), SUM(j.outcome = 3), 0
FROM {settled} AS j STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq AND w.token = j.token
WHERE w.queue IN (1, 3) AND j.outcome <> 0
GROUP BY w.handler
FOR UPDATE /*!80000 OF w */;

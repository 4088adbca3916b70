DELETE w
FROM {settled} AS j STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq AND w.token = j.token
WHERE w.queue IN (1, 3) AND j.outcome <> 0;

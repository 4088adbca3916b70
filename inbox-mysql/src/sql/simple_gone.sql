DELETE w
FROM {leases}
WHERE w.queue = 1

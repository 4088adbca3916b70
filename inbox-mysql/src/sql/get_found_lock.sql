-- The message that find_lock.sql has found. In a transaction with an older snapshot, only a locking read
-- shows what stands there now.
SELECT {columns}, m.payload, f.result, NULL
FROM {message} AS m
LEFT JOIN {work} AS w ON w.seq = m.seq
LEFT JOIN {dead} AS d ON d.seq = m.seq
LEFT JOIN {done} AS f ON f.seq = m.seq
WHERE m.seq = @inbox_seq FOR UPDATE;

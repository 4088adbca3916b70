-- ?1 after this sequence number, ?2 limit, ?3 now, ?4 shown states as a JSON array, ?5 handler,
-- ?6 kind, ?7 ordering key, ?8 accepted at or before, ?9 accepted after, ?10 error text,
-- ?11 with payload and result.
SELECT {columns}, iif(?11, m.payload, NULL), iif(?11, s.result, NULL)
FROM {inbox}_state AS s CROSS JOIN {inbox}_message AS m ON m.seq = s.seq
WHERE s.seq > ?1 AND {filter}
ORDER BY s.seq
LIMIT ?2

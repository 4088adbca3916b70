-- ?1 after this sequence number, ?2 limit, ?3 now, ?4 shown states as a JSON array, ?5 handler,
-- ?6 kind, ?7 ordering key, ?8 accepted at or before, ?9 accepted after, ?10 error text,
-- ?11 ids as a JSON array, ?12 correlation id, ?13 finished at or before, ?14 finished after, ?15 due after,
-- ?16 due at or before, ?17 least attempts, ?18 beginning of the error, ?19 most attempts, ?20 only those
-- that block their ordering key, ?21 with payload, result and history.
SELECT {columns}, iif(?21, m.payload, NULL), iif(?21, s.result, NULL), iif(?21, s.history, NULL)
FROM {inbox}_state AS s CROSS JOIN {inbox}_message AS m ON m.seq = s.seq
WHERE {numbers} AND {filter}
ORDER BY s.seq
LIMIT ?2

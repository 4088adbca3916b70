-- ?1 before this sequence number; the others as in list.sql.
SELECT {columns}, iif(?21, m.payload, NULL), iif(?21, s.result, NULL), iif(?21, s.history, NULL)
FROM {inbox}_state AS s CROSS JOIN {inbox}_message AS m ON m.seq = s.seq
WHERE {numbers} AND {filter}
ORDER BY s.seq DESC
LIMIT ?2

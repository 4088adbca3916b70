-- The messages to begin that are known already, as they stand before. ?1 handlers, ids, lease ends and
-- workers as JSON arrays.
SELECT {columns}, m.payload, s.result, NULL
FROM json_each(?1) AS b
CROSS JOIN {inbox}_message AS m ON m.handler = b.value ->> 0 AND m.id = b.value ->> 1
LEFT JOIN {inbox}_state AS s ON s.seq = m.seq

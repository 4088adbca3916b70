SELECT {columns}, m.payload, s.result, s.history
FROM {inbox}_message AS m LEFT JOIN {inbox}_state AS s ON s.seq = m.seq
WHERE m.handler = ?1 AND m.id = ?2

SELECT {columns}, m.payload, f.result, COALESCE(w.history, d.history, f.history)
FROM {message} AS m
LEFT JOIN {work} AS w ON w.seq = m.seq
LEFT JOIN {dead} AS d ON d.seq = m.seq
LEFT JOIN {done} AS f ON f.seq = m.seq
WHERE m.handler = {handler} AND m.id = {id};

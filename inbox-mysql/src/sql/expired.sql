-- What a purge would delete next.
SELECT {columns}, m.payload, f.result
FROM {table} AS x FORCE INDEX (expired)
STRAIGHT_JOIN {message} AS m FORCE INDEX (PRIMARY) ON m.seq = x.seq
LEFT JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = x.seq
LEFT JOIN {dead} AS d FORCE INDEX (PRIMARY) ON d.seq = x.seq
LEFT JOIN {done} AS f FORCE INDEX (PRIMARY) ON f.seq = x.seq
WHERE {expired} ORDER BY x.finished_at, x.seq LIMIT {limit};

-- What a purge would delete next.
SELECT {columns}, m.payload, f.result, COALESCE(w.history, d.history, f.history)
FROM (SELECT seq, finished_at FROM ({ranges}) AS u ORDER BY finished_at, seq LIMIT {limit}) AS x
STRAIGHT_JOIN {message} AS m FORCE INDEX (PRIMARY) ON m.seq = x.seq
LEFT JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = x.seq
LEFT JOIN {dead} AS d FORCE INDEX (PRIMARY) ON d.seq = x.seq
LEFT JOIN {done} AS f FORCE INDEX (PRIMARY) ON f.seq = x.seq
ORDER BY x.finished_at, x.seq
{all_rows};

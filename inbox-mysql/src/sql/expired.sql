-- What a purge would delete, of @inbox_seqs; also where the message itself is lost.
SELECT {columns}, m.payload, f.result, COALESCE(w.history, d.history, f.history)
FROM (
    SELECT x.seq, x.finished_at
    FROM {seqs} AS j STRAIGHT_JOIN {table} AS x FORCE INDEX (PRIMARY) ON x.seq = j.seq
    WHERE {expired}
    ORDER BY x.finished_at, x.seq LIMIT {limit}
) AS e
LEFT JOIN {message} AS m FORCE INDEX (PRIMARY) ON m.seq = e.seq
LEFT JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = e.seq
LEFT JOIN {dead} AS d FORCE INDEX (PRIMARY) ON d.seq = e.seq
LEFT JOIN {done} AS f FORCE INDEX (PRIMARY) ON f.seq = e.seq
ORDER BY e.finished_at, e.seq
{all_rows};

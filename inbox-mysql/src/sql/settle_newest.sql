-- What became of leases whose rows are not where they were: their newest tokens.
SELECT j.seq, COALESCE(w.token, d.token, f.token)
FROM {seqs} AS j
LEFT JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq AND w.queue NOT IN (1, 3)
LEFT JOIN {dead} AS d FORCE INDEX (PRIMARY) ON d.seq = j.seq
LEFT JOIN {done} AS f FORCE INDEX (PRIMARY) ON f.seq = j.seq
{all_rows};

-- What became of leases whose rows are not where they were: their newest tokens.
SELECT j.seq, COALESCE(w.token, d.token, f.token)
FROM {seqs} AS j
LEFT JOIN {work} AS w ON w.seq = j.seq AND w.queue <> 1
LEFT JOIN {dead} AS d ON d.seq = j.seq
LEFT JOIN {done} AS f ON f.seq = j.seq;

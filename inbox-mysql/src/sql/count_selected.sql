SELECT COUNT(*), MAX(j.seq) FROM {seqs} AS j;

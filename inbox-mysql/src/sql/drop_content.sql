-- Drops payloads and results of the messages of @inbox_seqs, which are locked.
UPDATE {seqs} AS j STRAIGHT_JOIN {message} AS m FORCE INDEX (PRIMARY) ON m.seq = j.seq
SET m.payload = NULL, m.payload_bytes = NULL;
UPDATE {seqs} AS j STRAIGHT_JOIN {table} AS x FORCE INDEX (PRIMARY) ON x.seq = j.seq
SET x.kept = 0{and_result};

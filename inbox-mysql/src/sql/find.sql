-- @inbox_seq: the number of a key, as far as it is there.
SET @inbox_seq = NULL;
SELECT seq INTO @inbox_seq FROM {message} WHERE handler = {handler} AND id = {id};
SET @inbox_seqs = CONCAT('[', @inbox_seq, ']');

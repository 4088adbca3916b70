-- Lists in @inbox_seqs what was stored, which is found without locks.
SET @inbox_seqs = NULL;
{agg} SELECT JSON_ARRAYAGG(m.seq) INTO @inbox_seqs
FROM {message} AS m FORCE INDEX (PRIMARY)
WHERE @inbox_first > 0 AND m.seq >= @inbox_first AND m.batch = @inbox_batch;

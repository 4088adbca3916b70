-- @inbox_seqs: the next messages that a replay or a discard is to change.
SET @inbox_seqs = NULL;
{agg} SELECT JSON_ARRAYAGG(seq) INTO @inbox_seqs
FROM (SELECT {seq} FROM {lead} WHERE {conditions} ORDER BY {seq} LIMIT {limit}) AS t;

-- @inbox_seqs: the messages that have been final for longest.
SET @inbox_seqs = NULL;
{agg} SELECT JSON_ARRAYAGG(seq) INTO @inbox_seqs
FROM (SELECT seq FROM ({ranges}) AS u ORDER BY finished_at, seq LIMIT {limit}) AS t;

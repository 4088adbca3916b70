-- @inbox_seqs: the messages that have been final for longest.
SET @inbox_seqs = NULL;
{agg} SELECT JSON_ARRAYAGG(seq) INTO @inbox_seqs
FROM (
    SELECT x.seq FROM {table} AS x FORCE INDEX (expired)
    WHERE {expired} ORDER BY x.finished_at, x.seq LIMIT {limit} {locking}
) AS t;

-- Locks the messages of @inbox_seqs, and keeps in it those that have expired now.
SET @inbox_picked = NULL;
{agg} SELECT JSON_ARRAYAGG(seq) INTO @inbox_picked
FROM (
    SELECT x.seq
    FROM {seqs} AS j STRAIGHT_JOIN {table} AS x FORCE INDEX (PRIMARY) ON x.seq = j.seq
    WHERE {expired}
    FOR UPDATE /*!80000 OF x */ {locking}
) AS t;
SET @inbox_seqs = @inbox_picked;

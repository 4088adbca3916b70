-- Locks the final messages of @inbox_seqs, and keeps in it those that are still final.
SELECT d.seq FROM {seqs} AS j STRAIGHT_JOIN {dead} AS d ON d.seq = j.seq FOR UPDATE;
SELECT f.seq FROM {seqs} AS j STRAIGHT_JOIN {done} AS f ON f.seq = j.seq FOR UPDATE;
SET @inbox_picked = NULL;
{agg} SELECT JSON_ARRAYAGG(seq) INTO @inbox_picked
FROM (
    SELECT m.seq
    FROM {seqs} AS j
    STRAIGHT_JOIN {message} AS m ON m.seq = j.seq
    LEFT JOIN {dead} AS d ON d.seq = j.seq
    LEFT JOIN {done} AS f ON f.seq = j.seq
    WHERE (d.seq IS NOT NULL OR f.seq IS NOT NULL) AND {payload_there}
) AS t;
SET @inbox_seqs = @inbox_picked;

-- Locks the final messages of @inbox_seqs, and keeps in it those that are in one of the wanted
-- states now.
SELECT d.seq FROM {seqs} AS j STRAIGHT_JOIN {dead} AS d FORCE INDEX (PRIMARY) ON d.seq = j.seq
{all_rows} FOR UPDATE /*!80000 OF d */;
SELECT f.seq FROM {seqs} AS j STRAIGHT_JOIN {done} AS f FORCE INDEX (PRIMARY) ON f.seq = j.seq
{all_rows} FOR UPDATE /*!80000 OF f */;
SET @inbox_picked = NULL;
{agg} SELECT JSON_ARRAYAGG(seq) INTO @inbox_picked
FROM (
    SELECT m.seq
    FROM {seqs} AS j
    STRAIGHT_JOIN {message} AS m FORCE INDEX (PRIMARY) ON m.seq = j.seq
    LEFT JOIN {dead} AS d FORCE INDEX (PRIMARY) ON d.seq = j.seq
    LEFT JOIN {done} AS f FORCE INDEX (PRIMARY) ON f.seq = j.seq
    WHERE ({states}) AND {payload_there}
    FOR UPDATE /*!80000 OF m, d, f */
) AS t;
SET @inbox_seqs = @inbox_picked;

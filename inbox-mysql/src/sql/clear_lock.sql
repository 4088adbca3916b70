-- Locks the messages of @inbox_seqs where they stand, and keeps in it those that are not leased now.
SELECT w.seq FROM {seqs} AS j STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq
{all_rows} FOR UPDATE /*!80000 OF w */;
SELECT d.seq FROM {seqs} AS j STRAIGHT_JOIN {dead} AS d FORCE INDEX (PRIMARY) ON d.seq = j.seq
{all_rows} FOR UPDATE /*!80000 OF d */;
SELECT f.seq FROM {seqs} AS j STRAIGHT_JOIN {done} AS f FORCE INDEX (PRIMARY) ON f.seq = j.seq
{all_rows} FOR UPDATE /*!80000 OF f */;
SET @inbox_picked = NULL;
{agg} SELECT JSON_ARRAYAGG(seq) INTO @inbox_picked
FROM (
    SELECT j.seq
    FROM {seqs} AS j
    LEFT JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq
    LEFT JOIN {dead} AS d FORCE INDEX (PRIMARY) ON d.seq = j.seq
    LEFT JOIN {done} AS f FORCE INDEX (PRIMARY) ON f.seq = j.seq
    WHERE {states}
    FOR UPDATE /*!80000 OF w, d, f */
) AS t;
SET @inbox_seqs = @inbox_picked;

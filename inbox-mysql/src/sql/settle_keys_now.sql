-- As settle_keys.sql, of what is there now, for a transaction with an older snapshot. From the
-- messages: rows of the work are locked behind their keys.
SET @inbox_keys = NULL;
{agg} SELECT JSON_ARRAYAGG(JSON_ARRAY(HEX(handler), HEX(ordering_key))) INTO @inbox_keys
FROM (
    SELECT DISTINCT m.handler, m.ordering_key
    FROM {settled} AS j STRAIGHT_JOIN {message} AS m FORCE INDEX (PRIMARY) ON m.seq = j.seq
    WHERE m.ordering_key IS NOT NULL
    ORDER BY m.handler, m.ordering_key
    LIMIT 1000000
    FOR UPDATE /*!80000 OF m */
) AS k;

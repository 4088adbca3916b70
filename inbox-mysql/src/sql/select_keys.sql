-- @inbox_keys: the ordering keys of the messages in @inbox_seqs, in one order for all transactions.
SET @inbox_keys = NULL;
{agg} SELECT JSON_ARRAYAGG(JSON_ARRAY(HEX(handler), HEX(ordering_key))) INTO @inbox_keys
FROM (
    SELECT DISTINCT m.handler, m.ordering_key
    FROM {seqs} AS j STRAIGHT_JOIN {message} AS m FORCE INDEX (PRIMARY) ON m.seq = j.seq
    WHERE m.ordering_key IS NOT NULL
    ORDER BY m.handler, m.ordering_key
    LIMIT 1000000
) AS k;

-- @inbox_keys: the ordering keys of the leases in @inbox_settled, in one order for all transactions.
SET @inbox_keys = NULL;
{agg} SELECT JSON_ARRAYAGG(JSON_ARRAY(HEX(handler), HEX(ordering_key))) INTO @inbox_keys
FROM (
    SELECT DISTINCT w.handler, w.ordering_key
    FROM {settled} AS j STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq AND w.token = j.token
    WHERE w.ordering_key IS NOT NULL
    ORDER BY w.handler, w.ordering_key
    LIMIT 1000000
) AS k;

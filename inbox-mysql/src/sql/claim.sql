-- Selects what is due first in any of the queues, and locks it.
SET @inbox_claimed = NULL;
{agg} SELECT JSON_ARRAYAGG(JSON_ARRAY(visible_at, seq)) INTO @inbox_claimed
FROM (SELECT visible_at, seq FROM ({queues}) AS c ORDER BY visible_at, seq LIMIT {limit}) AS t;

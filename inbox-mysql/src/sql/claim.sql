-- Selects what is due first in any of the queues, and locks it. As long as messages of one of the handlers
-- are leased in runs it selects nothing: with a lease that has run out, those behind it are lost, which is
-- left to claim_runs.sql.
SET @inbox_claimed = NULL,
    @inbox_until = IF(EXISTS (SELECT 1 FROM {run} WHERE handler IN ({handlers})), -1, @inbox_now);
{agg} SELECT JSON_ARRAYAGG(JSON_ARRAY(visible_at, seq)) INTO @inbox_claimed
FROM (SELECT visible_at, seq FROM ({queues}) AS c ORDER BY visible_at, seq LIMIT {limit}) AS t;

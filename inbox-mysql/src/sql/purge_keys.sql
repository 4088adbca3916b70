-- @inbox_seqs: the messages of the keys in @inbox_keys.
SET @inbox_seqs = NULL;
{agg} SELECT JSON_ARRAYAGG(seq) INTO @inbox_seqs
FROM (
    SELECT DISTINCT m.seq
    FROM {keys} AS j STRAIGHT_JOIN {message} AS m FORCE INDEX (message_key)
        ON m.handler = UNHEX(j.h) AND m.id = UNHEX(j.k)
    ORDER BY m.seq LIMIT 1000000
) AS t;

-- Makes the earliest unfinished message of each ordering key the one that can be claimed, unless
-- one is leased, and forgets keys without unfinished messages. The caller has locked the keys.
-- Returns how many messages it made claimable.
CREATE OR REPLACE FUNCTION {inbox}_promote_key_heads(handlers text[], ordering_keys text[])
RETURNS bigint
{function_settings}
AS $$
#variable_conflict use_column
DECLARE
    heads bigint[];
    overtaken bigint[];
    empty tid[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        -- What is seen may be older than the lock on the keys. Everything that decides below is
        -- locked first, which fails if it has changed since.
        PERFORM FROM unnest(handlers, ordering_keys) AS k (handler, ordering_key)
        CROSS JOIN LATERAL (
            SELECT FROM {inbox}_work AS w
            WHERE w.handler = k.handler AND w.ordering_key = k.ordering_key
              AND w.ordering_key IS NOT NULL AND (w.state < 2 OR w.blocks)
            ORDER BY w.seq LIMIT 1
            FOR UPDATE
        ) AS head;
        PERFORM FROM unnest(handlers, ordering_keys) AS k (handler, ordering_key)
        CROSS JOIN LATERAL (
            SELECT FROM {inbox}_work AS w
            WHERE w.handler = k.handler AND w.ordering_key = k.ordering_key
              AND w.ordering_key IS NOT NULL AND w.claimable
            FOR UPDATE
        ) AS current;
    END IF;
    LOOP
        SELECT array_agg(head.seq) FILTER (WHERE head.state = 0 AND current.seq IS NULL),
            array_agg(current.seq) FILTER (WHERE current.state = 0 AND current.seq <> head.seq),
            array_agg(o.at) FILTER (WHERE head.seq IS NULL)
        INTO heads, overtaken, empty
        FROM (SELECT DISTINCT * FROM unnest(handlers, ordering_keys)) AS k (handler, ordering_key)
        CROSS JOIN LATERAL (
            SELECT o.ctid AS at FROM {inbox}_ordering AS o
            WHERE o.handler = k.handler AND o.ordering_key = k.ordering_key
            OFFSET 0
        ) AS o
        LEFT JOIN LATERAL (
            SELECT w.seq, w.state FROM {inbox}_work AS w
            WHERE w.handler = k.handler AND w.ordering_key = k.ordering_key
              AND w.ordering_key IS NOT NULL AND (w.state < 2 OR w.blocks)
            ORDER BY w.seq LIMIT 1
        ) AS head ON true
        LEFT JOIN LATERAL (
            SELECT w.seq, w.state FROM {inbox}_work AS w
            WHERE w.handler = k.handler AND w.ordering_key = k.ordering_key
              AND w.ordering_key IS NOT NULL AND w.claimable
            LIMIT 1
        ) AS current ON true;
        EXIT WHEN overtaken IS NULL;
        -- An earlier message is back. A claim does not wait for the key's lock and may just have
        -- leased the later one, which then stays first; so look again.
        UPDATE {inbox}_work SET claimable = false, late = false WHERE seq = ANY (overtaken) AND state = 0;
    END LOOP;

    IF heads IS NOT NULL THEN
        UPDATE {inbox}_work SET claimable = true, late = true WHERE seq = ANY (heads);
    END IF;
    IF empty IS NOT NULL THEN
        DELETE FROM {inbox}_ordering WHERE ctid = ANY (empty);
    END IF;
    RETURN coalesce(cardinality(heads), 0);
END
$$;

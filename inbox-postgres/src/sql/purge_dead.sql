-- Deletes dead messages that the caller has locked, but for those that block an ordering key which
-- another transaction is changing. Returns how many.
CREATE OR REPLACE FUNCTION {inbox}_purge_dead(old bigint[], wake boolean) RETURNS bigint
{function_settings}
AS $$
#variable_conflict use_column
DECLARE
    purged bigint[];
    unblocked_handlers text[];
    unblocked_keys text[];
BEGIN
    -- Not waiting for the keys: here they come after the rows, against the order of locks.
    SELECT array_agg(w.seq),
        array_agg(w.handler) FILTER (WHERE w.blocks),
        array_agg(w.ordering_key) FILTER (WHERE w.blocks)
    INTO purged, unblocked_handlers, unblocked_keys
    FROM unnest(old) AS g (seq)
    CROSS JOIN LATERAL (
        SELECT w.seq, w.handler, w.ordering_key, w.blocks FROM {inbox}_work AS w WHERE w.seq = g.seq
        OFFSET 0
    ) AS w
    LEFT JOIN LATERAL (
        SELECT o.changes FROM {inbox}_ordering AS o
        WHERE w.blocks AND o.handler = w.handler AND o.ordering_key = w.ordering_key
        FOR UPDATE SKIP LOCKED
    ) AS o ON true
    WHERE NOT w.blocks OR o.changes IS NOT NULL;

    WITH gone AS (
        DELETE FROM {inbox}_message AS m
        USING unnest(purged) AS g (seq)
        WHERE m.seq = ANY (ARRAY[g.seq])
        RETURNING m.handler, m.id
    ),
    -- {if partitioned}
    forgotten AS (
        DELETE FROM {keys} AS k
        USING gone AS g
        WHERE k.handler = ANY (ARRAY[g.handler]) AND k.id = ANY (ARRAY[g.id])
    ),
    -- {end}
    finished AS (
        DELETE FROM {inbox}_work WHERE seq = ANY (purged) RETURNING handler
    )
    INSERT INTO {inbox}_tally (handler, dead)
    SELECT handler, -count(*) FROM finished GROUP BY handler;
    {compact_counters_sometimes}

    IF unblocked_handlers IS NOT NULL THEN
        PERFORM {inbox}_lock_keys(unblocked_handlers, unblocked_keys);
        IF {inbox}_promote_key_heads(unblocked_handlers, unblocked_keys) > 0 AND wake THEN
            PERFORM pg_notify('{channel}', '');
        END IF;
    END IF;
    RETURN coalesce(cardinality(purged), 0);
END
$$;

-- Deletes dead messages that the caller has locked, but for those that block an ordering key which
-- somebody else is changing. Returns how many.
CREATE OR REPLACE FUNCTION {fn:purge_dead}(old bigint[], wake boolean) RETURNS bigint
{pinned}
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
        SELECT w.seq, w.handler, w.ordering_key, w.blocks FROM {work} AS w WHERE w.seq = g.seq
        OFFSET 0
    ) AS w
    LEFT JOIN LATERAL (
        SELECT o.changes FROM {ordering} AS o
        WHERE w.blocks AND o.handler = w.handler AND o.ordering_key = w.ordering_key
        FOR UPDATE SKIP LOCKED
    ) AS o ON true
    WHERE NOT w.blocks OR o.changes IS NOT NULL;

    WITH gone AS (
        DELETE FROM {message} AS m
        USING unnest(purged) AS g (seq)
        WHERE m.seq = ANY (ARRAY[g.seq])
        RETURNING m.handler, m.id
    ), {forget_keys}finished AS (
        DELETE FROM {work} WHERE seq = ANY (purged) RETURNING handler
    )
    INSERT INTO {tally} (handler, dead)
    SELECT handler, -count(*) FROM finished GROUP BY handler;
    PERFORM {fn:fold}();

    IF unblocked_handlers IS NOT NULL THEN
        PERFORM {fn:lock_keys}(unblocked_handlers, unblocked_keys);
        IF {fn:rehead}(unblocked_handlers, unblocked_keys) > 0 AND wake THEN
            PERFORM pg_notify('{channel}', '');
        END IF;
    END IF;
    RETURN coalesce(cardinality(purged), 0);
END
$$;

-- Deletes the keys of up to `wanted` messages of a partition that was dropped, and the partition's
-- tables when that was the last of them. Returns how many messages that was, whether there was such
-- a partition that nobody else is working on, and whether its tables could not be deleted.
CREATE OR REPLACE FUNCTION {inbox}_forget(
    wanted integer, OUT forgotten bigint, OUT worked boolean, OUT stuck boolean
)
{function_settings}
SET lock_timeout = '{lock_timeout}'
AS $$
#variable_conflict use_column
DECLARE
    dropped record;
    handlers text[];
    ids text[];
    seqs bigint[];
BEGIN
    {require_read_committed}
    forgotten := 0;
    worked := false;
    stuck := false;
    SELECT p.number, p.dropped_state, p.forgotten INTO dropped
    FROM {inbox}_partition AS p
    WHERE p.dropped_state IS NOT NULL
    ORDER BY p.number LIMIT 1
    FOR UPDATE SKIP LOCKED;
    IF dropped.number IS NULL THEN
        RETURN;
    END IF;
    worked := true;

    EXECUTE format(
        'SELECT array_agg(handler), array_agg(id), array_agg(seq) FROM (
             SELECT m.handler, m.id, m.seq FROM {schema}.%I AS m
             WHERE m.seq > $1 ORDER BY m.seq LIMIT $2
         ) AS m',
        '{prefix}_message_' || dropped.number
    ) INTO handlers, ids, seqs USING dropped.forgotten, wanted;
    IF seqs IS NOT NULL THEN
        forgotten := cardinality(seqs);
        -- A key that has begun a new life meanwhile has another number.
        WITH gone AS (
            DELETE FROM {keys} AS k
            USING unnest(handlers, ids, seqs) AS g (handler, id, seq)
            WHERE k.handler = ANY (ARRAY[g.handler]) AND k.id = ANY (ARRAY[g.id])
              AND k.seq = g.seq
            RETURNING k.handler
        )
        INSERT INTO {inbox}_tally (handler, processed, discarded)
        SELECT handler, CASE WHEN dropped.dropped_state = 2 THEN -count(*) ELSE 0 END,
            CASE WHEN dropped.dropped_state = 4 THEN -count(*) ELSE 0 END
        FROM gone
        GROUP BY handler;
        UPDATE {inbox}_partition AS p SET forgotten = seqs[cardinality(seqs)]
        WHERE p.number = dropped.number;
    END IF;

    IF forgotten < wanted THEN
        BEGIN
            EXECUTE format(
                'DROP TABLE {schema}.%I, {schema}.%I',
                '{prefix}_message_' || dropped.number, '{prefix}_done_' || dropped.number
            );
            DELETE FROM {inbox}_partition AS p WHERE p.number = dropped.number;
        EXCEPTION WHEN lock_not_available THEN
            -- It is being read, by a dump perhaps. The next purge tries again.
            stuck := true;
        END;
    END IF;
END
$$;

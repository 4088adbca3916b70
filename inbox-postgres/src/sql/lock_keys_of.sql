-- Locks the ordering keys of leased messages, in one order and before anybody's work rows, and
-- returns them; without any, NULL. A key that is not there any more has no leased message.
CREATE OR REPLACE FUNCTION {inbox}_lock_keys_of(
    seqs bigint[], OUT handlers text[], OUT ordering_keys text[]
)
{function_settings}
AS $$
#variable_conflict use_column
BEGIN
    SELECT array_agg(k.handler), array_agg(k.ordering_key) INTO handlers, ordering_keys
    FROM (
        SELECT DISTINCT w.handler, w.ordering_key
        FROM unnest(seqs) AS g (seq)
        CROSS JOIN LATERAL (
            SELECT w.handler, w.ordering_key FROM {inbox}_work AS w
            WHERE w.seq = g.seq AND w.ordering_key IS NOT NULL
            OFFSET 0
        ) AS w
        ORDER BY w.handler, w.ordering_key
    ) AS k
    CROSS JOIN LATERAL (
        SELECT FROM {inbox}_ordering AS o
        WHERE o.handler = k.handler AND o.ordering_key = k.ordering_key
        FOR UPDATE
    ) AS o;
END
$$;

-- Which of the rows in $1, or their ordering keys, another transaction has locked. Waits for none.
WITH there AS MATERIALIZED (
    SELECT w.seq, w.handler, w.ordering_key FROM {inbox}_work AS w WHERE w.seq = ANY ($1)
), free AS MATERIALIZED (
    SELECT w.seq FROM {inbox}_work AS w WHERE w.seq = ANY ($1) FOR UPDATE SKIP LOCKED
), free_keys AS MATERIALIZED (
    SELECT o.handler, o.ordering_key FROM {inbox}_ordering AS o
    WHERE (o.handler, o.ordering_key) IN (
        SELECT t.handler, t.ordering_key FROM there AS t WHERE t.ordering_key IS NOT NULL
    )
    FOR UPDATE SKIP LOCKED
)
SELECT t.seq FROM there AS t
WHERE NOT EXISTS (SELECT FROM free AS f WHERE f.seq = t.seq)
   OR (
       t.ordering_key IS NOT NULL AND NOT EXISTS (
           SELECT FROM free_keys AS k
           WHERE k.handler = t.handler AND k.ordering_key = t.ordering_key
       )
   )

-- What is left when some of the tables were loaded from a dump and others were not: the first of
-- these that holds. Looks at few rows, most of them those that came first and last.
SELECT CASE
    WHEN EXISTS (
        SELECT FROM (
            (SELECT seq FROM {inbox}_message ORDER BY seq LIMIT 100)
            UNION ALL
            (SELECT seq FROM {inbox}_message ORDER BY seq DESC LIMIT 100)
        ) AS m
        WHERE NOT EXISTS (SELECT FROM {inbox}_work AS w WHERE w.seq = m.seq)
          AND NOT EXISTS (SELECT FROM {inbox}_done AS d WHERE d.seq = m.seq)
    ) THEN 'there are messages of which neither {prefix}_work nor {prefix}_done knows'
    WHEN NOT EXISTS (SELECT FROM {inbox}_message) AND (
        EXISTS (SELECT FROM {inbox}_work) OR EXISTS (SELECT FROM {inbox}_done)
    ) THEN '{prefix}_message is empty, and {prefix}_work or {prefix}_done is not'
    WHEN EXISTS (
        SELECT FROM (
            (
                SELECT handler, ordering_key FROM {inbox}_work
                WHERE ordering_key IS NOT NULL AND (state < 2 OR blocks)
                ORDER BY handler, ordering_key, seq LIMIT 100
            )
            UNION ALL
            (
                SELECT handler, ordering_key FROM {inbox}_work
                WHERE ordering_key IS NOT NULL AND (state < 2 OR blocks)
                ORDER BY handler DESC, ordering_key DESC, seq DESC LIMIT 100
            )
        ) AS w
        WHERE NOT EXISTS (
            SELECT FROM {inbox}_ordering AS o
            WHERE o.handler = w.handler AND o.ordering_key = w.ordering_key
        )
    ) THEN '{prefix}_ordering lacks ordering keys of {prefix}_work'
    -- Of many rows it counts the first ones only: a tally that knows of as many is not empty. It may
    -- know of more than there are, while the keys of a partition that was dropped are deleted.
    WHEN EXISTS (
        SELECT FROM (
            SELECT coalesce(sum(pending + leased + dead), 0) AS work,
                coalesce(sum(processed + discarded), 0) AS done
            FROM {inbox}_tally
        ) AS t
        WHERE t.work < (SELECT count(*) FROM (SELECT FROM {inbox}_work LIMIT 1000) AS w)
           OR t.done < (SELECT count(*) FROM (SELECT FROM {inbox}_done LIMIT 1000) AS d)
    ) THEN '{prefix}_tally does not count what is in {prefix}_work and {prefix}_done'
    -- {if partitioned}
    WHEN NOT EXISTS (
        SELECT FROM {inbox}_seq AS s
        JOIN {inbox}_partition AS p ON p.number = s.last_value / {width}
        WHERE p.dropped_state IS NULL
    ) THEN 'the sequence stands in a partition that {prefix}_partition does not list'
    WHEN EXISTS (
        SELECT FROM unnest(ARRAY['{prefix}_message', '{prefix}_done']) AS parent
        WHERE (
            SELECT count(*) FROM pg_catalog.pg_inherits AS i
            JOIN pg_catalog.pg_class AS c ON c.oid = i.inhparent
            JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
            WHERE n.nspname = '{schema_name}' AND c.relname = parent
        ) <> (SELECT count(*) FROM {inbox}_partition WHERE dropped_state IS NULL)
    ) THEN 'the partitions that are there are not those that {prefix}_partition lists'
    WHEN EXISTS (
        SELECT FROM (SELECT seq FROM {inbox}_key LIMIT 100) AS k
        WHERE NOT EXISTS (SELECT FROM {inbox}_message AS m WHERE m.seq = k.seq)
          AND NOT EXISTS (
              SELECT FROM {inbox}_partition AS p
              WHERE p.number = k.seq / {width} AND p.dropped_state IS NOT NULL
          )
    ) THEN 'there are keys in {prefix}_key without their messages'
    WHEN EXISTS (
        SELECT FROM (
            (SELECT seq, handler, id FROM {inbox}_message ORDER BY seq LIMIT 100)
            UNION ALL
            (SELECT seq, handler, id FROM {inbox}_message ORDER BY seq DESC LIMIT 100)
        ) AS m
        WHERE NOT EXISTS (
            SELECT FROM {inbox}_key AS k
            WHERE k.handler = m.handler AND k.id = m.id AND k.seq = m.seq
        )
    ) THEN 'there are messages without their keys in {prefix}_key'
    -- {end}
END

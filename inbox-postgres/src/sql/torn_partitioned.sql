    WHEN NOT EXISTS (
        SELECT FROM {sequence} AS s
        JOIN {partition} AS p ON p.number = s.last_value / {width}
        WHERE p.dropped_state IS NULL
    ) THEN 'the sequence stands in a partition that {prefix}_partition does not list'
    WHEN EXISTS (
        SELECT FROM unnest(ARRAY['{prefix}_message', '{prefix}_done']) AS parent
        WHERE (
            SELECT count(*) FROM pg_catalog.pg_inherits AS i
            JOIN pg_catalog.pg_class AS c ON c.oid = i.inhparent
            JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
            WHERE n.nspname = '{schema_name}' AND c.relname = parent
        ) <> (SELECT count(*) FROM {partition} WHERE dropped_state IS NULL)
    ) THEN 'the partitions that are there are not those that {prefix}_partition lists'
    WHEN EXISTS (
        SELECT FROM (SELECT seq FROM {key} LIMIT 100) AS k
        WHERE NOT EXISTS (SELECT FROM {message} AS m WHERE m.seq = k.seq)
          AND NOT EXISTS (
              SELECT FROM {partition} AS p
              WHERE p.number = k.seq / {width} AND p.dropped_state IS NOT NULL
          )
    ) THEN 'there are keys in {prefix}_key without their messages'
    WHEN EXISTS (
        SELECT FROM (
            (SELECT seq, handler, id FROM {message} ORDER BY seq LIMIT 100)
            UNION ALL
            (SELECT seq, handler, id FROM {message} ORDER BY seq DESC LIMIT 100)
        ) AS m
        WHERE NOT EXISTS (
            SELECT FROM {key} AS k
            WHERE k.handler = m.handler AND k.id = m.id AND k.seq = m.seq
        )
    ) THEN 'there are messages without their keys in {prefix}_key'

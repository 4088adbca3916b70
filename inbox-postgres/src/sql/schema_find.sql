-- How many of the tables there are, how many of the columns that say what this is, and whether it
-- is kept in partitions.
SELECT
    (
        SELECT count(*) FROM pg_catalog.pg_class AS c
        JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = '{schema_name}' AND c.relname = ANY (ARRAY[
            '{prefix}_message', '{prefix}_work', '{prefix}_done', '{prefix}_ordering',
            '{prefix}_tally', '{prefix}_paused', '{prefix}_meta'
        ])
    ),
    (
        SELECT count(*) FROM pg_catalog.pg_attribute AS a
        JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid
        JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = '{schema_name}' AND c.relname = '{prefix}_meta'
          AND a.attname IN ('marker', 'version', 'works_from', 'revision')
          AND a.atttypid IN ('text'::regtype, 'integer'::regtype) AND NOT a.attisdropped
    ),
    EXISTS (
        SELECT FROM pg_catalog.pg_class AS c
        JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = '{schema_name}' AND c.relname = '{prefix}_partition'
    )

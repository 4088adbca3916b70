-- $1 schema, $2 names of the tables, $3 name of the one that says what this is. How many of the
-- tables there are, and how many of the columns that say so.
SELECT
    (
        SELECT count(*) FROM pg_catalog.pg_class AS c
        JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = $1 AND c.relname = ANY ($2)
    ),
    (
        SELECT count(*) FROM pg_catalog.pg_attribute AS a
        JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid
        JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = $1 AND c.relname = $3 AND a.attname IN ('marker', 'version')
          AND a.atttypid IN ('text'::regtype, 'integer'::regtype) AND NOT a.attisdropped
    )

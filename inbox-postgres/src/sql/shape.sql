-- $1 schema, $2 prefix. What the inbox is made of, a line for each part, to be compared with what
-- this build would make.
SELECT 'column ' || c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
    || CASE WHEN l.collname = 'C' THEN ' collate C' ELSE '' END
    || CASE WHEN a.attnotnull THEN ' not null' ELSE '' END
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_catalog.pg_collation AS l ON l.oid = a.attcollation
WHERE n.nspname = $1 AND starts_with(c.relname, $2 || '_') AND c.relkind IN ('r', 'p', 'v')
UNION ALL
SELECT 'index ' || replace(pg_get_indexdef(i.indexrelid), quote_ident(n.nspname) || '.', '')
FROM pg_catalog.pg_index AS i
JOIN pg_catalog.pg_class AS c ON c.oid = i.indrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND starts_with(c.relname, $2 || '_') AND i.indisvalid
UNION ALL
SELECT 'sequence ' || c.relname || ' by ' || s.seqincrement || ' from ' || s.seqmin
FROM pg_catalog.pg_sequence AS s
JOIN pg_catalog.pg_class AS c ON c.oid = s.seqrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND starts_with(c.relname, $2 || '_')
UNION ALL
SELECT 'function ' || p.proname || p.prosrc
FROM pg_catalog.pg_proc AS p
JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
WHERE n.nspname = $1 AND starts_with(p.proname, $2 || '_')

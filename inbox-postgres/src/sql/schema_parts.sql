-- What the inbox is made of, a line for each part, to be compared with what this build would make. Without the quotes
-- that some sessions put around all names (quote_all_identifiers).
SELECT 'column ' || c.relname || '.' || a.attname || ' ' || replace(format_type(a.atttypid, a.atttypmod), '"', '')
    || CASE WHEN l.collname = 'C' THEN ' collate C' ELSE '' END
    || CASE WHEN a.attnotnull THEN ' not null' ELSE '' END
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_catalog.pg_collation AS l ON l.oid = a.attcollation
WHERE n.nspname = '{schema_name}' AND starts_with(c.relname, '{prefix}_') AND c.relkind IN ('r', 'p', 'v')
  AND NOT c.relispartition
UNION ALL
SELECT 'index ' || replace(replace(
    replace(pg_get_indexdef(i.indexrelid), quote_ident(n.nspname) || '.', ''), ' ON ONLY ', ' ON '
), '"', '')
FROM pg_catalog.pg_index AS i
JOIN pg_catalog.pg_class AS c ON c.oid = i.indrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = '{schema_name}' AND starts_with(c.relname, '{prefix}_') AND i.indisvalid
  AND NOT c.relispartition
UNION ALL
SELECT 'sequence ' || c.relname || ' by ' || s.seqincrement || ' from ' || s.seqmin
FROM pg_catalog.pg_sequence AS s
JOIN pg_catalog.pg_class AS c ON c.oid = s.seqrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = '{schema_name}' AND starts_with(c.relname, '{prefix}_')
UNION ALL
-- Of functions, how they are called, and, where there is an inbox to ask, that their texts are those
-- that were set up; not which texts, which may be another build's.
SELECT 'function ' || p.proname || '(' || replace(oidvectortypes(p.proargtypes), '"', '') || ') ' || replace(coalesce(
    (
        SELECT string_agg(format_type(a.type, NULL), ', ' ORDER BY a.place)
        FROM unnest(p.proallargtypes, p.proargmodes) WITH ORDINALITY AS a (type, mode, place)
        WHERE a.mode IN ('o', 't')
    ),
    format_type(p.prorettype, NULL)
), '"', '')
FROM pg_catalog.pg_proc AS p
JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
{same_texts}
WHERE n.nspname = '{schema_name}' AND starts_with(p.proname, '{prefix}_')

-- The texts of the functions that are there.
SELECT p.proname::text, p.prosrc FROM pg_catalog.pg_proc AS p
JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
WHERE n.nspname = '{schema_name}' AND starts_with(p.proname, '{prefix}_')

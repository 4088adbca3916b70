-- What was set up, with digests of the functions as they came to be in the database, by name and types of
-- arguments: builds may leave others of the same name, which their workers call.
INSERT INTO {inbox}_meta (singleton, marker, version, works_from, revision, functions)
SELECT true, '{marker}', {version}, {works_from}, {revision}, jsonb_object_agg(
    p.proname || '(' || replace(oidvectortypes(p.proargtypes), '"', '') || ')',
    encode(sha256(convert_to(p.prosrc, 'UTF8')), 'hex')
)
FROM pg_catalog.pg_proc AS p
JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
WHERE n.nspname = '{schema_name}' AND p.proname IN ({functions})
ON CONFLICT (singleton) DO UPDATE SET
    version = excluded.version, works_from = excluded.works_from, revision = excluded.revision,
    functions = excluded.functions;

-- Removes the inbox but for its sequence, whatever of it is there, and nothing else. What others have made
-- upon it, such as a view, makes this fail.
DO $remove$
DECLARE
    part text;
BEGIN
    -- All tables that operations lock come first, in the order in which most come to them: who has an earlier
    -- one gets the later ones and ends. Who has them the other way round waits until this gives up.
    FOR part IN
        SELECT format('{schema}.%I', c.relname)
        FROM unnest(ARRAY['paused', 'key', 'message', 'work', 'ordering', 'done', 'tally'])
            WITH ORDINALITY AS t (name, place)
        JOIN pg_catalog.pg_class AS c ON c.relname = '{prefix}_' || t.name
        JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = '{schema_name}' AND c.relkind IN ('r', 'p')
        ORDER BY t.place
    LOOP
        EXECUTE 'LOCK TABLE ' || part;
    END LOOP;
    DROP VIEW IF EXISTS {inbox}_overview;
    FOR part IN
        SELECT format('%I.%I(%s)', n.nspname, p.proname, pg_get_function_identity_arguments(p.oid))
        FROM pg_catalog.pg_proc AS p
        JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
        WHERE n.nspname = '{schema_name}'
          AND p.proname IN (
              SELECT split_part(jsonb_object_keys(m.functions), '(', 1) FROM {inbox}_meta AS m
          )
    LOOP
        EXECUTE 'DROP FUNCTION ' || part;
    END LOOP;
    -- {if partitioned}
    -- Those that were taken out of their tables, and are still to be forgotten.
    FOR part IN
        SELECT format('{schema}.%I', t.name || p.number)
        FROM {inbox}_partition AS p
        CROSS JOIN unnest(ARRAY['{prefix}_message_', '{prefix}_done_']) AS t (name)
        WHERE p.dropped_state IS NOT NULL
    LOOP
        EXECUTE 'DROP TABLE IF EXISTS ' || part;
    END LOOP;
    DROP TABLE IF EXISTS {inbox}_key, {inbox}_partition;
    -- {end}
    DROP TABLE IF EXISTS {inbox}_message, {inbox}_work, {inbox}_done, {inbox}_ordering,
        {inbox}_tally, {inbox}_paused, {inbox}_meta;
END
$remove$;

-- Makes a partition. Attaching one that was made as a separate table waits for nobody who reads
-- or writes, and nobody waits for it.
CREATE OR REPLACE FUNCTION {inbox}_make_partition(wanted bigint) RETURNS void
{function_settings}
AS $$
DECLARE
    parent text;
    child text;
BEGIN
    FOREACH parent IN ARRAY ARRAY['message', 'done'] LOOP
        child := format('{schema}.%I', '{prefix}_' || parent || '_' || wanted);
        parent := format('{schema}.%I', '{prefix}_' || parent);
        EXECUTE format('CREATE TABLE %s (LIKE %s INCLUDING ALL)', child, parent);
        EXECUTE format(
            'ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (%s) TO (%s)',
            parent, child, wanted * {width}, (wanted + 1) * {width}
        );
    END LOOP;
    INSERT INTO {inbox}_partition (number, forgotten) VALUES (wanted, wanted * {width} - 1);
END
$$;

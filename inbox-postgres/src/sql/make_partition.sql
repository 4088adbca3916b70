-- Makes a partition. Attaching one that was made as a table of its own waits for nobody who reads
-- or writes, and nobody waits for it.
CREATE OR REPLACE FUNCTION {fn:make_partition}(wanted bigint) RETURNS void
{pinned}
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
    INSERT INTO {partition} (number, forgotten) VALUES (wanted, wanted * {width} - 1);
END
$$;

-- Whether all messages of a closed partition have been in `final_state` since `finished_before`, are
-- of `only_handler` if one is given, and are more than `few`; or whether there are none. Looks at the
-- ends of indexes only.
CREATE OR REPLACE FUNCTION {inbox}_is_over(
    candidate bigint, final_state smallint, finished_before timestamptz, only_handler text,
    few integer
) RETURNS boolean
{function_settings}
AS $$
DECLARE
    part text := format('{schema}.%I', '{prefix}_done_' || candidate);
    one text;
    lowest smallint;
    highest smallint;
    latest timestamptz;
    plenty boolean;
BEGIN
    IF EXISTS (
        SELECT FROM {inbox}_work AS w
        WHERE w.seq >= candidate * {width} AND w.seq < (candidate + 1) * {width}
    ) THEN
        RETURN false;
    END IF;
    EXECUTE format('SELECT d.handler FROM %s AS d ORDER BY d.handler LIMIT 1', part) INTO one;
    IF one IS NULL THEN
        RETURN true;
    END IF;
    WHILE one IS NOT NULL LOOP
        IF one <> only_handler THEN
            RETURN false;
        END IF;
        EXECUTE format(
            'SELECT (
                 SELECT d.state FROM %1$s AS d WHERE d.handler = $1 ORDER BY d.state LIMIT 1
             ), (
                 SELECT d.state FROM %1$s AS d WHERE d.handler = $1 ORDER BY d.state DESC LIMIT 1
             ), (
                 SELECT max(last.finished_at) FROM (VALUES (true), (false)) AS c (content)
                 CROSS JOIN LATERAL (
                     SELECT d.finished_at FROM %1$s AS d
                     WHERE d.handler = $1 AND d.state = $2 AND d.content = c.content
                     ORDER BY d.finished_at DESC LIMIT 1
                 ) AS last
             )',
            part
        ) INTO lowest, highest, latest USING one, final_state;
        IF lowest <> final_state OR highest <> final_state OR latest > finished_before THEN
            RETURN false;
        END IF;
        EXECUTE format(
            'SELECT (SELECT d.handler FROM %s AS d WHERE d.handler > $1 ORDER BY d.handler LIMIT 1)',
            part
        ) INTO one USING one;
    END LOOP;
    EXECUTE format('SELECT EXISTS (SELECT FROM %s AS d ORDER BY d.seq OFFSET $1)', part)
    INTO plenty USING few;
    RETURN plenty;
END
$$;

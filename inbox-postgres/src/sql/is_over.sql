-- Whether all messages of a closed partition have been in `final_state` since `finished_before`,
-- and whether they are none, or more than `few`. Looks at the ends of indexes only.
CREATE OR REPLACE FUNCTION {inbox}_is_over(
    candidate bigint, final_state smallint, finished_before timestamptz, few integer
) RETURNS boolean
{function_settings}
AS $$
DECLARE
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
    EXECUTE format(
        'SELECT d.state FROM {schema}.%I AS d ORDER BY d.state, d.finished_at, d.seq LIMIT 1',
        '{prefix}_done_' || candidate
    ) INTO lowest;
    IF lowest IS NULL THEN
        RETURN true;
    END IF;
    EXECUTE format(
        'SELECT d.state, d.finished_at FROM {schema}.%I AS d
         ORDER BY d.state DESC, d.finished_at DESC, d.seq DESC LIMIT 1',
        '{prefix}_done_' || candidate
    ) INTO highest, latest;
    IF lowest <> final_state OR highest <> final_state OR latest > finished_before THEN
        RETURN false;
    END IF;
    EXECUTE format(
        'SELECT EXISTS (SELECT FROM {schema}.%I AS d ORDER BY d.seq OFFSET $1)',
        '{prefix}_done_' || candidate
    ) INTO plenty USING few;
    RETURN plenty;
END
$$;

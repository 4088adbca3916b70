-- Drops payload and result of up to `wanted` messages of the handlers that have been in a final state for
-- `age` microseconds, the longest finished first, passing over those that others are working on. Returns
-- how many.
CREATE OR REPLACE FUNCTION {inbox}_drop_payloads(
    final_state smallint, age bigint, handlers text[], wanted integer
) RETURNS bigint
{function_settings}
AS $$
#variable_conflict use_column
DECLARE
    old bigint[];
BEGIN
    {require_read_committed}
    old := {inbox}_lock_expired(
        final_state, {inbox}_now() - age * interval '1 microsecond', handlers, '{true}', wanted
    );
    IF final_state = 3 THEN
        UPDATE {inbox}_work SET content = false WHERE seq = ANY (old);
    ELSE
        UPDATE {inbox}_done AS d SET content = false, result = NULL
        FROM unnest(old) AS g (seq)
        WHERE d.seq = ANY (ARRAY[g.seq]);
    END IF;
    UPDATE {inbox}_message AS m SET payload = NULL
    FROM unnest(old) AS g (seq)
    WHERE m.seq = ANY (ARRAY[g.seq]) AND m.payload IS NOT NULL;
    RETURN coalesce(cardinality(old), 0);
END
$$;

-- Whether a complete inbox {prefix} is there, in the schema {schema_name}: all of its parts, made as this
-- build makes them.
SELECT NOT EXISTS (
    SELECT part FROM (VALUES
{expected}
    ) AS expected (part)
    EXCEPT
    SELECT part FROM (
{parts}
    ) AS present (part)
) AS is_complete;

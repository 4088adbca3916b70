-- Keeps the result of a message that the caller's transaction has recorded as processed. Fails, and the
-- transaction with it, where there is none.
CREATE OR REPLACE FUNCTION {inbox}_keep_result(
    of_handler text, of_id text, new_result bytea, OUT kept bigint
)
{function_settings}
AS $$
BEGIN
    UPDATE {inbox}_done SET result = new_result, content = true
    WHERE state = 2 AND seq = (
        SELECT k.seq FROM {keys} AS k WHERE k.handler = of_handler AND k.id = of_id
    )
    RETURNING seq INTO STRICT kept;
END
$$;

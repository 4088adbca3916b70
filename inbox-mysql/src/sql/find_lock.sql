-- @inbox_seq: the number of a key, as far as it is there now, whatever the transaction's isolation level; it
-- is locked. @inbox_keys: the stored copy's ordering key, which may be another than this copy's.
SET @inbox_seq = NULL, @inbox_keys = NULL;
SELECT seq, IF(ordering_key IS NULL, NULL,
    JSON_ARRAY(JSON_ARRAY(HEX(handler), HEX(ordering_key)))) INTO @inbox_seq, @inbox_keys
FROM {message} WHERE handler = {handler} AND id = {id} FOR UPDATE;

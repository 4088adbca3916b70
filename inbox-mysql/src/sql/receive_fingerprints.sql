-- The fingerprints of the first copies of the keys in @inbox_ids. With a lock: see `multi_statement.rs`.
SELECT m.handler, m.id, m.fingerprint
FROM {ids} AS j STRAIGHT_JOIN {message} AS m FORCE INDEX (message_key)
    ON m.handler = UNHEX(j.h) AND m.id = UNHEX(j.k)
WHERE {wanted}
{all_rows} FOR UPDATE /*!80000 OF m */;

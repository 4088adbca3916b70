-- The fingerprints that are kept of a batch, right behind receive.sql: of none unless there were duplicates.
-- ?1 messages as JSON arrays.
SELECT m.handler, m.id, m.fingerprint
FROM json_each(?1) AS r
CROSS JOIN {inbox}_message AS m ON m.handler = r.value ->> 0 AND m.id = r.value ->> 1
WHERE changes() < json_array_length(?1)

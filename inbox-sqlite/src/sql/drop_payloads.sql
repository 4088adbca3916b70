-- ?1 sequence numbers as a JSON array.
UPDATE {inbox}_message SET payload = NULL, payload_bytes = NULL
WHERE seq IN (SELECT value FROM json_each(?1))

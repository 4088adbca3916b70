-- ?1 sequence numbers as a JSON array.
DELETE FROM {inbox}_message
WHERE seq IN (SELECT value FROM json_each(?1))

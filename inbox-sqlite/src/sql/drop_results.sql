-- ?1 sequence numbers as a JSON array. Payloads are dropped behind it.
UPDATE {inbox}_state SET result = NULL
WHERE seq IN (SELECT value FROM json_each(?1))

-- ?1 sequence numbers as a JSON array. Payloads are dropped behind it. What has lost its message has
-- no content from then on either: otherwise it would be found again and again.
UPDATE {inbox}_state SET result = NULL, has_content = 0
WHERE seq IN (SELECT value FROM json_each(?1))

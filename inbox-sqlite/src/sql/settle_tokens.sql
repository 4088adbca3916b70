-- ?1 sequence numbers as a JSON array.
SELECT seq, token FROM {inbox}_state WHERE seq IN (SELECT value FROM json_each(?1))

-- The result of a message that this transaction has recorded as processed.
-- ?1 handler, ?2 id, ?3 result.
UPDATE {inbox}_state SET result = ?3
WHERE seq = (SELECT seq FROM {inbox}_message WHERE handler = ?1 AND id = ?2) AND state = 2

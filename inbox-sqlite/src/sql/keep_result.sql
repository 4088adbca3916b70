-- The result of a message that this transaction has recorded as processed.
-- ?1 handler, ?2 id, ?3 result. The payload may have been dropped before.
UPDATE {inbox}_state SET result = ?3, has_content = 1
WHERE seq = (SELECT seq FROM {inbox}_message WHERE handler = ?1 AND id = ?2) AND state = 2

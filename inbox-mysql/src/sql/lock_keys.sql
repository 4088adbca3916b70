-- Locks and changes the ordering keys of @inbox_keys, in that order.
INSERT INTO {ordering} (handler, ordering_key, head, changes)
SELECT UNHEX(j.h), UNHEX(j.k), 0, 0 FROM {keys} AS j
ON DUPLICATE KEY UPDATE changes = {ordering}.changes + 1;

-- ?1 rows as JSON arrays of sequence number and reason, ?2 now.
UPDATE {inbox}_state
SET state = 3, claimable = 0, lease_until = NULL, token = max(token + 1, ?2),
    finished_at = ?2, last_error = j.reason, blocks = 0
FROM (SELECT value ->> 0 AS row, value ->> 1 AS reason FROM json_each(?1)) AS j
WHERE seq = j.row

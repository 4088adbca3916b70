-- ?1 a JSON object of tokens by sequence number, ?2 lease end. One whose turn in its run came when its lease
-- had run out is counted as an attempt now.
UPDATE {inbox}_state
SET lease_until = ?2, visible_at = ?2,
    started = max(started, finished + claimable)
FROM (SELECT CAST(key AS INTEGER) AS row, value AS held FROM json_each(?1)) AS j
WHERE seq = j.row AND token = j.held AND state = 1
RETURNING seq, token

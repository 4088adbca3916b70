-- What settle.sql does, for processed messages without results, which most are. That one takes nine
-- values of each message out of JSON, and half as long again. ?1 a JSON object of tokens by number: an array
-- for each lease would be parsed by itself. ?2 now.
UPDATE {inbox}_state
SET state = 2, claimable = 0, lease_until = NULL, visible_at = due_at,
    started = started + (started <= finished), finished = finished + 1, finished_at = ?2,
    blocks = 0, result = NULL
FROM (SELECT CAST(key AS INTEGER) AS row, value AS held FROM json_each(?1)) AS j
WHERE seq = j.row AND token = j.held AND state = 1
RETURNING seq, token, ordering_key IS NOT NULL

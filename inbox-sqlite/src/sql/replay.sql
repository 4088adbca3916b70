-- ?1 sequence numbers as a JSON array, ?2 now.
UPDATE {inbox}_state
SET state = 0, claimable = ordering_key IS NULL, due_at = ?2, visible_at = ?2,
    started = 0, finished = 0, replays = replays + 1,
    finished_at = NULL, last_error = NULL, result = NULL, blocks = 0
WHERE seq IN (SELECT value FROM json_each(?1)) AND state >= 2

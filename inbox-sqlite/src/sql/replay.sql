-- ?1 sequence numbers as a JSON array, ?2 now, ?3 who signs, ?4 whether with other content.
UPDATE {inbox}_state
SET state = 0, claimable = ordering_key IS NULL, due_at = ?2, visible_at = ?2,
    started = 0, finished = 0, replays = replays + 1,
    finished_at = NULL, last_error = NULL, result = NULL, blocks = 0,
    history = {signed}
WHERE seq IN (SELECT value FROM json_each(?1)) AND state >= 2

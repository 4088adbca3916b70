-- ?1 sequence numbers as a JSON array, ?2 now, ?3 who signs. A lease that has run out gets a new token, so
-- that its holder is told so when it settles.
UPDATE {inbox}_state
SET state = 4, claimable = 0, lease_until = NULL, finished_at = ?2, blocks = 0,
    token = iif(state = 1, max(token + 1, ?2), token),
    history = {signed}
WHERE seq IN (SELECT value FROM json_each(?1))
  AND (state = 0 OR state = 3 OR (state = 1 AND lease_until <= ?2))

-- ?1 sequence numbers as a JSON array, ?2 now, ?3 who signs, ?4 due at. A lease that has run out gets a new token, so
-- that its holder is told so when it settles. It may have others of its run behind it.
UPDATE {inbox}_state
SET state = 0, lease_until = iif(state = 1, ?2, lease_until), due_at = ?4, visible_at = ?4,
    token = iif(state = 1, max(token + 1, ?2), token),
    history = {signed}
WHERE seq IN (SELECT value FROM json_each(?1))
  AND (state = 0 OR (state = 1 AND lease_until <= ?2))

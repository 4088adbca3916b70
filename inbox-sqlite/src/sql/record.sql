-- ?1 to ?9 as in insert.sql, ?10 result. A new token, so that a worker whose lease ran out is
-- told so when it settles.
UPDATE {inbox}_state
SET state = 2, claimable = 0, lease_until = NULL, token = max(token + 1, ?7),
    started = started + 1, finished = finished + 1, finished_at = ?7, result = ?10
WHERE seq = (SELECT seq FROM {inbox}_message WHERE handler = ?1 AND id = ?2)
  AND claimable = 1 AND visible_at <= ?7
RETURNING 'recorded', seq, token, started

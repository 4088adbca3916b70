-- ?1 to ?9 as in insert.sql, ?10 lease end, ?11 worker.
UPDATE {inbox}_state
SET state = 1, lease_until = ?10, visible_at = ?10, token = max(token + 1, ?7),
    started = started + 1, worker = ?11
WHERE seq = (SELECT seq FROM {inbox}_message WHERE handler = ?1 AND id = ?2)
  AND claimable = 1 AND visible_at <= ?7
RETURNING 'leased', seq, token, started

-- ?1 sequence numbers as a JSON array, ?2 now, ?3 lease end, ?4 worker. Those behind the first of a run,
-- which alone can be claimed, are counted when their turn comes.
UPDATE {inbox}_state
SET state = 1, lease_until = ?3, visible_at = ?3, token = max(token + 1, ?2),
    started = started + claimable, worker = ?4, leased_at = ?2
WHERE seq IN (SELECT value FROM json_each(?1))

-- Leases on the messages to begin, behind receive.sql, as far as they can be taken. ?1 handlers, ids,
-- lease ends and workers as JSON arrays, ?2 now. A join with the messages would begin with what is
-- claimable.
UPDATE {inbox}_state
SET state = 1, lease_until = b.until, visible_at = b.until, token = max(token + 1, ?2),
    started = started + 1, worker = b.worker, leased_at = ?2
FROM (
    SELECT
        (
            SELECT seq FROM {inbox}_message
            WHERE handler = j.value ->> 0 AND id = j.value ->> 1
        ) AS row,
        j.value ->> 2 AS until, j.value ->> 3 AS worker
    FROM json_each(?1) AS j
) AS b
WHERE seq = b.row AND claimable = 1 AND visible_at <= ?2
RETURNING seq, token

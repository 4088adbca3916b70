UPDATE message AS w
SET state = 2, claimable = false, finished_at = now(), finished = w.finished + 1
FROM unnest($1::bigint[], $2::bigint[]) AS s (seq, token)
WHERE w.seq = s.seq AND w.token = s.token AND w.state = 1
RETURNING w.seq

-- A leased row is found in the claim index: the lease says its handler and its end.
WITH held AS (
    SELECT w.at, s.token
    FROM unnest($1::bigint[], $2::bigint[]) AS s (seq, token)
    CROSS JOIN LATERAL (
        SELECT w.ctid AS at FROM work AS w
        WHERE w.claimable AND w.handler = $3 AND w.state = 1
          AND w.visible_at = timestamptz 'epoch' + $4::bigint * interval '1 microsecond'
          AND w.seq = s.seq AND w.token = s.token
        OFFSET 0
    ) AS w
), gone AS (
    DELETE FROM work AS w USING held AS h
    WHERE w.ctid = h.at AND w.token = h.token
    RETURNING w.*
)
INSERT INTO done (seq, due_at, finished_at, token, started, finished, state, worker)
SELECT seq, due_at, now(), token, started, finished + 1, 2, worker FROM gone
RETURNING seq

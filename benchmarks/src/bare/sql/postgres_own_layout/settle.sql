WITH gone AS (
    DELETE FROM work AS w
    USING unnest($1::bigint[], $2::bigint[]) AS s (seq, token)
    WHERE w.seq = s.seq AND w.token = s.token AND w.state = 1
    RETURNING w.*
)
INSERT INTO done (seq, due_at, finished_at, token, started, finished, state, worker)
SELECT seq, due_at, now(), token, started, finished + 1, 2, worker FROM gone
RETURNING seq

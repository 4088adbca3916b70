USE {database};
SET @now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
INSERT INTO inbox_message (
    seq, handler, id, kind, headers, accepted_at, first_due_at, batch, payload_bytes, payload
)
WITH digit (d) AS (
    SELECT 0 UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4
    UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9
), numbered (n) AS (
    SELECT e.d * 10000 + d.d * 1000 + c.d * 100 + b.d * 10 + a.d
    FROM digit AS a JOIN digit AS b JOIN digit AS c JOIN digit AS d JOIN digit AS e
)
SELECT {from} + n - 1000000000, 'bench', MD5({from} + n), 'bench.event', '{}',
    @now - 86400000000, @now - 86400000000, 0, 16, '0123456789abcdef'
FROM numbered WHERE n < {number} ORDER BY n;
INSERT INTO inbox_done (
    seq, handler, state, due_at, token, started, finished, replays, worker, finished_at
)
SELECT seq, handler, 2, first_due_at, 1, 1, 1, 0, 'worker-1', @now - 86400000000 + seq + 1000000000
FROM inbox_message
WHERE seq >= {from} - 1000000000 AND seq < {from} + {number} - 1000000000;
INSERT INTO inbox_tally (handler, backlog, processed, dead, discarded)
VALUES ('bench', 0, {number}, 0, 0);

-- What {number} messages leave in the index that claims read: pending, then leased, then processed.
BEGIN;
INSERT INTO inbox_work (
    seq, visible_at, due_at, token, started, finished, replays, state, claimable, blocks, handler
)
SELECT -n, due, due, 0, 0, 0, 0, 0, true, false, 'bench'
FROM generate_series(1, {number}) AS n
CROSS JOIN LATERAL (SELECT now() - interval '1 day' + n * interval '1 millisecond' AS due) AS d;
COMMIT;
BEGIN;
UPDATE inbox_work SET state = 1, token = 1, started = 1,
    visible_at = visible_at + interval '1 minute'
WHERE seq < 0;
COMMIT;
BEGIN;
DELETE FROM inbox_work WHERE seq < 0;
COMMIT;

-- {number} due messages of 16 bytes, due before any that is received now.
WITH numbered AS (
    SELECT nextval('inbox_seq') AS seq FROM generate_series(0, ({number} - 1) / 1000)
), spread AS (
    SELECT n.seq + i AS seq FROM numbered AS n CROSS JOIN generate_series(0, 999) AS i
), received AS (
    INSERT INTO inbox_message (seq, accepted_at, handler, id, kind, headers, payload)
    SELECT seq, now() - interval '1 day', 'bench', md5(seq::text), 'bench.event', '{}',
        '\x00112233445566778899aabbccddeeff'
    FROM spread
), queued AS (
    INSERT INTO inbox_work (
        seq, visible_at, due_at, token, started, finished, replays, state, claimable, blocks,
        handler
    )
    SELECT seq, due, due, 0, 0, 0, 0, 0, true, false, 'bench'
    FROM spread
    CROSS JOIN LATERAL (
        SELECT now() - interval '1 hour' + (seq % 1000000000) * interval '1 microsecond' AS due
    ) AS d
)
INSERT INTO inbox_tally (handler, pending) SELECT 'bench', count(*) FROM spread;

-- {number} processed messages of 16 bytes, spread over the last day.
WITH numbered AS (
    SELECT nextval('inbox_seq') AS seq FROM generate_series(0, ({number} - 1) / 1000)
), spread AS (
    SELECT n.seq + i AS seq FROM numbered AS n CROSS JOIN generate_series(0, 999) AS i
), received AS (
    INSERT INTO inbox_message (seq, accepted_at, handler, id, kind, headers, payload)
    SELECT seq, now() - interval '1 day', 'bench', md5(seq::text), 'bench.event', '{}',
        '\x00112233445566778899aabbccddeeff'
    FROM spread
), finished AS (
    INSERT INTO inbox_done (
        seq, due_at, finished_at, token, started, finished, replays, state, worker
    )
    SELECT seq, now() - interval '1 day',
        now() - interval '1 day' + (seq % 86400000) * interval '1 millisecond',
        1, 1, 1, 0, 2, 'worker-1'
    FROM spread
)
INSERT INTO inbox_tally (handler, processed) SELECT 'bench', count(*) FROM spread;

-- Fills a new inbox on PostgreSQL (`inbox --store URL schema create`) with ten million messages, for dashboard.md:
-- 9.88 million processed, 50,000 pending, 2,000 leased, 65,000 dead of five groups, of which 1,000 hold up 500 ordering keys.
-- Takes about six minutes, and 6 GB.
SET synchronous_commit = off;

INSERT INTO inbox_message (
    seq, accepted_at, fingerprint, handler, id, kind, content_type, ordering_key, headers, payload
)
SELECT n, now() - (10000000 - n) * interval '0.1 second', n,
    CASE n % 3 WHEN 0 THEN 'billing' WHEN 1 THEN 'mail' ELSE 'stock' END, 'evt-' || n,
    CASE n % 2 WHEN 0 THEN 'order.placed' ELSE 'order.paid' END, 'application/json',
    CASE WHEN n > 9999000 THEN 'customer-' || n % 500 END,
    '{"correlation-id": "c-1", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}',
    convert_to('{"order": ' || n || ', "text": "' || repeat('x', 100) || '"}', 'UTF8')
FROM generate_series(1, 10000000) AS n;

-- Those that are not finished are spread over the last 1.3 million.
CREATE TEMPORARY TABLE open AS
SELECT n, CASE
    WHEN n > 9999000 THEN 3
    WHEN n % 20 = 0 THEN 3
    WHEN n % 20 = 1 AND n > 9000000 THEN 0
    WHEN n % 500 = 2 AND n > 9000000 THEN 1
END AS state
FROM generate_series(8719000, 10000000) AS n;
DELETE FROM open WHERE state IS NULL;
CREATE UNIQUE INDEX ON open (n);

INSERT INTO inbox_work (
    seq, visible_at, due_at, leased_at, finished_at, token, started, finished, replays, state,
    claimable, blocks, handler, ordering_key, worker, last_error, history
)
SELECT n, CASE state WHEN 1 THEN now() + interval '1 day' ELSE m.accepted_at END, m.accepted_at,
    CASE WHEN state > 0 THEN now() END, CASE state WHEN 3 THEN now() END, n, state, state / 3, 0, state,
    state < 3, m.ordering_key IS NOT NULL, m.handler, m.ordering_key,
    CASE WHEN state > 0 THEN 'worker-' || n % 40 END,
    CASE WHEN state < 3 THEN NULL
        WHEN n % 60 = 0 THEN 'http::Refused: order ' || n || ' was refused'
        WHEN n % 40 = 0 THEN 'exit status: 65: no answer for order ' || n || ' within 30 s'
        ELSE 'json::Error: order ' || n || ' has no customer' END,
    CASE state WHEN 3 THEN (
        SELECT jsonb_agg(jsonb_build_object('attempt', a, 'replays', 0, 'worker', 'w', 'leased_at', 1,
            'ended_at', 2, 'end', 'retried', 'error', repeat('e', 60)))
        FROM generate_series(1, 5) AS a
    ) END
FROM open JOIN inbox_message AS m ON m.seq = open.n;

INSERT INTO inbox_ordering (handler, ordering_key, changes)
SELECT DISTINCT handler, ordering_key, 1 FROM inbox_work WHERE ordering_key IS NOT NULL;

INSERT INTO inbox_done (
    seq, due_at, leased_at, finished_at, token, started, finished, replays, state, content, handler, worker
)
SELECT m.seq, m.accepted_at, m.accepted_at, m.accepted_at, m.seq, 1, 1, 0, 2, true, m.handler, 'worker-1'
FROM inbox_message AS m WHERE NOT EXISTS (SELECT FROM open WHERE n = m.seq);

INSERT INTO inbox_tally (handler, pending, leased, processed, dead)
SELECT handler, count(*) FILTER (WHERE state = 0), count(*) FILTER (WHERE state = 1),
    count(*) FILTER (WHERE state = 2), count(*) FILTER (WHERE state = 3)
FROM (SELECT handler, state FROM inbox_work UNION ALL SELECT handler, state FROM inbox_done) AS s
GROUP BY handler;

SELECT setval('inbox_seq', 11000000);
VACUUM (ANALYZE) inbox_message, inbox_work, inbox_done;

-- Queues what was stored. The zero bytes leave room for the name of a worker: rows that grow when they
-- are claimed would split the pages that were filled with them.
INSERT INTO {work} (
    seq, handler, ordering_key, queue, visible_at, due_at, leased_at, token, started, finished,
    replays, worker
)
SELECT m.seq, m.handler, m.ordering_key, IF(m.ordering_key IS NULL, 0, 2), m.first_due_at,
    m.first_due_at, 0, 0, 0, 0, 0, REPEAT(x'00', 32)
FROM {stored};

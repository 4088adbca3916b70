-- Queues what was stored in the block. The zero bytes leave room for the name of a worker: rows that
-- grow when they are claimed would split the pages that were filled with them.
INSERT INTO {work} (
    seq, handler, ordering_key, queue, visible_at, due_at, token, started, finished, replays,
    worker
)
SELECT seq, handler, ordering_key, IF(ordering_key IS NULL, 0, 2), first_due_at, first_due_at,
    0, 0, 0, 0, REPEAT(x'00', 32)
FROM {message}
WHERE seq >= @inbox_first AND seq < @inbox_first + {block_size};

-- Queues what was stored in the block.
INSERT INTO {work} (
    seq, handler, ordering_key, queue, visible_at, due_at, token, started, finished, replays
)
SELECT seq, handler, ordering_key, IF(ordering_key IS NULL, 0, 2), first_due_at, first_due_at,
    0, 0, 0, 0
FROM {message}
WHERE seq >= @inbox_first AND seq < @inbox_first + {block_size};

INSERT INTO {open} (handler, ordering_key, seq)
SELECT handler, ordering_key, seq FROM {work}
WHERE seq >= @inbox_first AND seq < @inbox_first + {block_size} AND ordering_key IS NOT NULL;

-- Counts what was stored in the block, for several handlers.
INSERT INTO {tally} (handler, backlog, processed, dead, discarded)
SELECT handler, COUNT(*), 0, 0, 0 FROM {work}
WHERE seq >= @inbox_first AND seq < @inbox_first + {block_size}
GROUP BY handler;

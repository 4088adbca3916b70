-- Leases the one message that was stored in the block, unless its key was known. Answers with its
-- row then.
INSERT INTO {work} (
    seq, handler, ordering_key, queue, visible_at, due_at, token, started, finished, replays,
    worker
)
SELECT seq, handler, NULL, 1, @inbox_now + @inbox_lease, first_due_at, @inbox_now, 1, 0, 0,
    @inbox_worker
FROM {message}
WHERE seq = @inbox_first;
INSERT INTO {tally} (handler, backlog, processed, dead, discarded)
SELECT handler, 1, 0, 0, 0 FROM {message} WHERE seq = @inbox_first;
SELECT seq FROM {message} WHERE seq = @inbox_first;

-- Leases the one message that was stored, unless its key was known. Answers with its number then.
INSERT INTO {work} (
    seq, handler, ordering_key, queue, visible_at, due_at, token, started, finished, replays,
    worker
)
SELECT m.seq, m.handler, NULL, 1, @inbox_now + @inbox_lease, m.first_due_at, @inbox_now, 1, 0, 0,
    @inbox_worker
FROM {stored};
INSERT INTO {tally} (handler, backlog, processed, dead, discarded)
SELECT m.handler, 1, 0, 0, 0 FROM {stored};
SELECT m.seq, m.accepted_at FROM {stored};

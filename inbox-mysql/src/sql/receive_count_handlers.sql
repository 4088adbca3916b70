-- Counts what was stored, for several handlers.
INSERT INTO {tally} (handler, backlog, processed, dead, discarded)
SELECT m.handler, COUNT(*), 0, 0, 0 FROM {stored} GROUP BY m.handler
{and_if_seen_early};

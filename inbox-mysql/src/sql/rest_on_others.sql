-- Something to commit, for an answer that rests on what others wrote.
INSERT INTO {tally} (handler, backlog, processed, dead, discarded)
SELECT '-', 0, 0, 0, 0 FROM DUAL WHERE FALSE {or_seen_early};

-- Counts what was stored, for one handler.
INSERT INTO {tally} (handler, backlog, processed, dead, discarded)
SELECT {handler}, @inbox_count, 0, 0, 0 FROM DUAL WHERE @inbox_count > 0 {or_seen_early};

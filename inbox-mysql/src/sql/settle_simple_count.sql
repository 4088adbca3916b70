INSERT INTO {tally} (handler, backlog, processed, dead, discarded)
VALUES ({handler}, -@inbox_count, @inbox_count, 0, 0);

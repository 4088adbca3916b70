-- Locks the message that find_lock.sql has found, if it is processed.
SELECT seq FROM {done} WHERE seq = @inbox_seq AND state = 2 FOR UPDATE;

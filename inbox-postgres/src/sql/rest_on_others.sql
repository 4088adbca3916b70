-- The answer rests on what others wrote. With a record in the log this commit waits, as theirs does, for the
-- disk and the standbys.
PERFORM pg_logical_emit_message(true, 'inbox', ''::text);

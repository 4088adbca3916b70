-- The result of a message that keep_result_find.sql has locked.
UPDATE {done} SET result = {result}, kept = 1 WHERE seq = @inbox_seq;

-- Adds a result that does not fit into the list to a message that was processed just now.
UPDATE {done} SET result = {result}, kept = 1
WHERE result IS NULL AND finished_at = @inbox_now AND seq = {seq} AND token = {token};

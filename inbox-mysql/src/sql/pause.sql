INSERT INTO {paused} (handler, paused_at) VALUES ({handler}, @inbox_now)
ON DUPLICATE KEY UPDATE paused_at = {paused}.paused_at;

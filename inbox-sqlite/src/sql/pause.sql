INSERT INTO {inbox}_paused (handler) VALUES (?1) ON CONFLICT DO NOTHING

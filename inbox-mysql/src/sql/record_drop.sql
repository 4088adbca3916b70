UPDATE {message} SET payload = NULL, payload_bytes = NULL WHERE seq = @inbox_taken;

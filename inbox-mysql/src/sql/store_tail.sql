ON DUPLICATE KEY UPDATE seq = {message}.seq

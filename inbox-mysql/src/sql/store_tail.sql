ON DUPLICATE KEY UPDATE seq = IF(
    {message}.handler = VALUES(handler) AND {message}.id = VALUES(id),
    {message}.seq, {message}.seq + 9223372036854775807
)

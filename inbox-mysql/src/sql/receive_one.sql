-- Whether the one message was new, and the fingerprint of the first copy if not. With a lock, which is there
-- already: an older snapshot need not show what was stored.
SELECT @inbox_count, (
    SELECT fingerprint FROM {message}
    WHERE handler = {handler} AND id = {id} AND @inbox_count = 0 FOR UPDATE
);

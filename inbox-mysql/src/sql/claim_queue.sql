-- What is due in one queue of a handler that is not paused, past what other transactions have locked.
(
    SELECT {selected} FROM {work} FORCE INDEX (claim)
    WHERE handler = {handler} AND queue = {queue} AND visible_at <= @inbox_until
        AND (SELECT COUNT(*) FROM {paused} WHERE handler = {handler}) = 0
    ORDER BY visible_at, seq LIMIT {limit} FOR UPDATE SKIP LOCKED
);

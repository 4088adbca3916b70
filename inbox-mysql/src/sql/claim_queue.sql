-- What is due in one queue of a handler, past what other transactions have locked.
(
    SELECT seq, visible_at FROM {work} FORCE INDEX (claim)
    WHERE handler = {handler} AND queue = {queue} AND visible_at <= @inbox_now
    ORDER BY visible_at, seq LIMIT {limit} FOR UPDATE SKIP LOCKED
);

-- As claim_queue.sql, of what became due no sooner than {from}.
(
    SELECT {selected} FROM {work} FORCE INDEX (claim)
    WHERE handler = {handler} AND queue = {queue} AND visible_at >= {from}
        AND visible_at <= @inbox_until
        AND (SELECT COUNT(*) FROM {paused} WHERE handler = {handler}) = 0
    ORDER BY visible_at, seq LIMIT {limit} FOR UPDATE SKIP LOCKED
);

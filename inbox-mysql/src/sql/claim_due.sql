-- Whether something of a handler is due, unless it is paused.
(SELECT COUNT(*) FROM {paused} WHERE handler = {handler}) = 0 AND EXISTS (
    SELECT 1 FROM {work} FORCE INDEX (claim)
    WHERE queue IN (0, 1) AND visible_at <= @inbox_now AND handler = {handler}
);

-- Whether nothing was selected although something is due.
SELECT @inbox_claimed IS NULL AND EXISTS (
    SELECT 1 FROM {work} FORCE INDEX (claim)
    WHERE queue IN (0, 1) AND visible_at <= @inbox_now AND handler IN ({handlers})
);

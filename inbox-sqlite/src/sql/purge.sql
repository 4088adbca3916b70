-- The longest finished, of each handler at most ?3 and so of all. ?1 state, ?2 finished at or before,
-- ?3 limit, ?4 handler if not all, ?5 the least of has_content. Their messages are deleted behind it: one that
-- has lost its message goes, too.
DELETE FROM {inbox}_state
WHERE seq IN (SELECT seq FROM (
    {expired}
))
RETURNING seq

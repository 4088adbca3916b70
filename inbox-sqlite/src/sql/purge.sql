-- The longest finished, of each handler at most ?3 and so of all. ?1 state, ?2 finished at or before,
-- ?3 limit, ?4 handler if not all, ?5 the least of has_content.
DELETE FROM {inbox}_message
WHERE seq IN (SELECT seq FROM (
    {expired}
))

-- Whose payloads and results are dropped. Parameters as in purge.sql.
SELECT seq FROM (
    {expired}
)

-- What is left when some of the tables were loaded from a dump and others were not: the first of
-- these that holds. Looks at few rows, those that came first and last.
SELECT CASE
    WHEN EXISTS (
        SELECT FROM (
            (SELECT seq FROM {message} ORDER BY seq LIMIT 100)
            UNION ALL
            (SELECT seq FROM {message} ORDER BY seq DESC LIMIT 100)
        ) AS m
        WHERE NOT EXISTS (SELECT FROM {work} AS w WHERE w.seq = m.seq)
          AND NOT EXISTS (SELECT FROM {done} AS d WHERE d.seq = m.seq)
    ) THEN 'there are messages of which neither {prefix}_work nor {prefix}_done knows'
    WHEN NOT EXISTS (SELECT FROM {message}) AND (
        EXISTS (SELECT FROM {work}) OR EXISTS (SELECT FROM {done})
    ) THEN '{prefix}_message is empty, and {prefix}_work or {prefix}_done is not'
{torn}
END

-- A line for each thing that tells that the tables are not of one moment. Looks at some rows at either
-- end of each table, whatever their size. One statement, so that it sees one moment itself. A message
-- that is missing by itself is no such thing: a claim that meets it reports it.
WITH tallied AS (
    SELECT COALESCE(SUM(backlog), 0) AS backlog, COALESCE(SUM(dead), 0) AS dead,
        COALESCE(SUM(processed) + SUM(discarded), 0) AS done
    FROM {tally}
), some_messages AS (
    (SELECT seq FROM {message} ORDER BY seq LIMIT 100)
    UNION (SELECT seq FROM {message} ORDER BY seq DESC LIMIT 100)
), some_work AS (
    (SELECT seq, handler, ordering_key, queue FROM {work} ORDER BY seq LIMIT 100)
    UNION (SELECT seq, handler, ordering_key, queue FROM {work} ORDER BY seq DESC LIMIT 100)
), some_open AS (
    (
        SELECT handler, ordering_key, seq FROM {open}
        ORDER BY handler, ordering_key, seq LIMIT 100
    )
    UNION (
        SELECT handler, ordering_key, seq FROM {open}
        ORDER BY handler DESC, ordering_key DESC, seq DESC LIMIT 100
    )
), some_run AS (
    (
        SELECT handler, ordering_key, seq FROM {run}
        ORDER BY handler, ordering_key, seq LIMIT 100
    )
    UNION (
        SELECT handler, ordering_key, seq FROM {run}
        ORDER BY handler DESC, ordering_key DESC, seq DESC LIMIT 100
    )
), newest AS (
    (SELECT seq FROM {work} ORDER BY seq DESC LIMIT 100)
    UNION (SELECT seq FROM {dead} ORDER BY seq DESC LIMIT 100)
    UNION (SELECT seq FROM {done} ORDER BY seq DESC LIMIT 100)
)
SELECT 'tally does not count what is in work' AS finding FROM tallied
WHERE LEAST(backlog, 1000) <> (SELECT COUNT(*) FROM (SELECT 1 FROM {work} LIMIT 1000) AS x)
UNION ALL
SELECT 'tally does not count what is in dead' FROM tallied
WHERE LEAST(dead, 1000) <> (SELECT COUNT(*) FROM (SELECT 1 FROM {dead} LIMIT 1000) AS x)
UNION ALL
SELECT 'tally does not count what is in done' FROM tallied
WHERE LEAST(done, 1000) <> (SELECT COUNT(*) FROM (SELECT 1 FROM {done} LIMIT 1000) AS x)
UNION ALL
SELECT 'message has rows that neither work nor dead nor done has' FROM DUAL
WHERE EXISTS (
    SELECT 1 FROM some_messages AS m
    LEFT JOIN {work} AS w ON w.seq = m.seq
    LEFT JOIN {dead} AS d ON d.seq = m.seq
    LEFT JOIN {done} AS f ON f.seq = m.seq
    WHERE w.seq IS NULL AND d.seq IS NULL AND f.seq IS NULL
)
UNION ALL
SELECT 'message lacks what work, dead and done have' FROM (
    SELECT COUNT(*) AS companions, COUNT(m.seq) AS messages
    FROM newest AS n LEFT JOIN {message} AS m ON m.seq = n.seq
) AS x
WHERE companions > 1 AND messages = 0
UNION ALL
SELECT 'open lacks messages of work' FROM DUAL
WHERE EXISTS (
    SELECT 1 FROM some_work AS w
    LEFT JOIN {open} AS e
        ON e.handler = w.handler AND e.ordering_key = w.ordering_key AND e.seq = w.seq
    WHERE w.ordering_key IS NOT NULL AND e.seq IS NULL
)
UNION ALL
SELECT 'open has messages that neither work nor dead has' FROM DUAL
WHERE EXISTS (
    SELECT 1 FROM some_open AS e
    LEFT JOIN {work} AS w ON w.seq = e.seq
    LEFT JOIN {dead} AS d ON d.seq = e.seq AND d.blocks = 1
    WHERE w.seq IS NULL AND d.seq IS NULL
)
UNION ALL
SELECT 'run has messages that are not leased in work' FROM DUAL
WHERE EXISTS (
    SELECT 1 FROM some_run AS r
    LEFT JOIN {work} AS w ON w.seq = r.seq AND w.queue IN (1, 3)
    WHERE w.seq IS NULL
)
UNION ALL
SELECT 'run lacks messages of work' FROM DUAL
WHERE EXISTS (
    SELECT 1 FROM some_work AS w
    LEFT JOIN {run} AS r
        ON r.handler = w.handler AND r.ordering_key = w.ordering_key AND r.seq = w.seq
    WHERE w.queue = 3 AND r.seq IS NULL
)
UNION ALL
SELECT 'ordering lacks keys of open' FROM DUAL
WHERE EXISTS (
    SELECT 1 FROM some_open AS e
    LEFT JOIN {ordering} AS o ON o.handler = e.handler AND o.ordering_key = e.ordering_key
    WHERE o.head IS NULL
);

-- Rules that do not hold in the tables of an inbox, and for how many rows. Knows their
-- layout and nothing of the store's own statements. One statement, so that it sees one moment.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
WITH standing AS (
    SELECT seq, handler, started, finished FROM {work}
    UNION ALL SELECT seq, handler, started, finished FROM {dead}
    UNION ALL SELECT seq, handler, started, finished FROM {done}
),
opened AS (
    SELECT m.handler, m.ordering_key, m.seq, w.queue
    FROM {message} AS m
    LEFT JOIN {work} AS w ON w.seq = m.seq
    LEFT JOIN {dead} AS d ON d.seq = m.seq AND d.blocks = 1
    WHERE m.ordering_key IS NOT NULL AND (w.seq IS NOT NULL OR d.seq IS NOT NULL)
),
ordering_keys AS (
    SELECT handler, ordering_key, MIN(seq) AS earliest, SUM(COALESCE(queue = 1, 0)) AS leased,
        MAX(CASE WHEN queue = 1 THEN seq END) AS leased_seq,
        MIN(CASE WHEN queue = 3 THEN seq END) AS first_behind
    FROM opened
    GROUP BY handler, ordering_key
),
headed AS (
    SELECT k.*, o.head FROM ordering_keys AS k
    LEFT JOIN {ordering} AS o
        ON o.handler = k.handler AND o.ordering_key = k.ordering_key
),
tallied AS (
    SELECT handler, SUM(backlog) AS backlog, SUM(processed) AS processed, SUM(dead) AS dead,
        SUM(discarded) AS discarded
    FROM (
        SELECT handler, backlog, processed, dead, discarded FROM {tally}
        UNION ALL SELECT handler, -1, 0, 0, 0 FROM {work}
        UNION ALL SELECT handler, 0, 0, -1, 0 FROM {dead}
        UNION ALL SELECT handler, 0, -(state = 2), 0, -(state = 4) FROM {done}
    ) AS each_row
    GROUP BY handler
)
SELECT CONCAT(rule_text, ': ', n) FROM (
    SELECT 'a message that stands nowhere or in two places' AS rule_text, COUNT(*) AS n
    FROM {message} AS m
    WHERE (SELECT COUNT(*) FROM standing AS s WHERE s.seq = m.seq) <> 1
    UNION ALL
    SELECT 'a state without a message', COUNT(*)
    FROM standing AS s LEFT JOIN {message} AS m ON m.seq = s.seq
    WHERE m.seq IS NULL
    UNION ALL
    SELECT 'handlers in two tables that differ', COUNT(*)
    FROM standing AS s JOIN {message} AS m ON m.seq = s.seq
    WHERE s.handler <> m.handler
    UNION ALL
    SELECT 'ordering keys in two tables that differ', COUNT(*)
    FROM {work} AS w JOIN {message} AS m ON m.seq = w.seq
    WHERE NOT (w.ordering_key <=> m.ordering_key)
    UNION ALL
    SELECT 'a block without an ordering key', COUNT(*)
    FROM {dead} AS d JOIN {message} AS m ON m.seq = d.seq
    WHERE d.blocks = 1 AND m.ordering_key IS NULL
    UNION ALL
    SELECT 'a state that is none', COUNT(*) FROM {done} WHERE state NOT IN (2, 4)
    UNION ALL
    SELECT 'content of a final message that does not say so', COUNT(*)
    FROM {message} AS m
    LEFT JOIN {dead} AS d ON d.seq = m.seq
    LEFT JOIN {done} AS f ON f.seq = m.seq
    WHERE COALESCE(d.kept, f.kept) = 0 AND (m.payload_bytes IS NOT NULL OR f.result IS NOT NULL)
    UNION ALL
    SELECT 'a final message that says that it has content and has none', COUNT(*)
    FROM {message} AS m JOIN {done} AS f ON f.seq = m.seq
    WHERE f.kept = 1 AND m.payload_bytes IS NULL AND f.result IS NULL
    UNION ALL
    SELECT 'a queue that is none', COUNT(*) FROM {work}
    WHERE queue NOT IN (0, 1, 2, 3) OR (queue > 1 AND ordering_key IS NULL)
    UNION ALL
    SELECT 'a lease without a worker', COUNT(*) FROM {work}
    WHERE queue IN (1, 3) AND worker IS NULL
    UNION ALL
    SELECT 'an attempt of a run that counts before its turn', COUNT(*) FROM {work}
    WHERE queue = 3 AND started > finished
    UNION ALL
    SELECT 'a message leased in a run that is not listed', COUNT(*)
    FROM opened AS x
    LEFT JOIN {run} AS r
        ON r.handler = x.handler AND r.ordering_key = x.ordering_key AND r.seq = x.seq
    WHERE x.queue = 3 AND r.seq IS NULL
    UNION ALL
    SELECT 'a message that is listed in a run and is not leased', COUNT(*)
    FROM {run} AS r
    LEFT JOIN opened AS x
        ON x.handler = r.handler AND x.ordering_key = r.ordering_key AND x.seq = r.seq
            AND x.queue IN (1, 3)
    WHERE x.seq IS NULL
    UNION ALL
    SELECT 'a run without a first message', COUNT(*) FROM ordering_keys
    WHERE first_behind IS NOT NULL AND (leased_seq IS NULL OR leased_seq > first_behind)
    UNION ALL
    SELECT 'an open message that is not listed', COUNT(*)
    FROM opened AS x
    LEFT JOIN {open} AS e
        ON e.handler = x.handler AND e.ordering_key = x.ordering_key AND e.seq = x.seq
    WHERE e.seq IS NULL
    UNION ALL
    SELECT 'a message that is listed as open and is not', COUNT(*)
    FROM {open} AS e
    LEFT JOIN opened AS x
        ON x.handler = e.handler AND x.ordering_key = e.ordering_key AND x.seq = e.seq
    WHERE x.seq IS NULL
    UNION ALL
    SELECT 'a key with two leased messages', COUNT(*) FROM ordering_keys WHERE leased > 1
    UNION ALL
    SELECT 'a key whose head is neither its leased message nor the earliest', COUNT(*)
    FROM headed WHERE NOT (head <=> COALESCE(leased_seq, earliest))
    UNION ALL
    SELECT 'a key without open messages', COUNT(*)
    FROM {ordering} AS o
    LEFT JOIN ordering_keys AS k
        ON k.handler = o.handler AND k.ordering_key = o.ordering_key
    WHERE k.earliest IS NULL
    UNION ALL
    SELECT 'a head that cannot be claimed, or another that can', COUNT(*)
    FROM opened AS x JOIN headed AS k
        ON k.handler = x.handler AND k.ordering_key = x.ordering_key
    WHERE (x.seq = k.head AND x.queue > 1) OR (x.seq <> k.head AND x.queue < 2)
    UNION ALL
    SELECT 'more attempts finished than started', COUNT(*) FROM standing
    WHERE finished > started
    UNION ALL
    SELECT 'a tally that is wrong', COUNT(*) FROM tallied
    WHERE backlog <> 0 OR processed <> 0 OR dead <> 0 OR discarded <> 0
) AS checked
WHERE n > 0;

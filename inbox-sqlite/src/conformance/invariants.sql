-- Rules that do not hold in the tables of an inbox, and for how many rows. Knows their
-- layout and nothing of the store's own statements.
WITH counted AS (
    SELECT handler, sum(state < 2) AS unfinished, sum(state = 2) AS processed, sum(state = 3) AS dead,
        sum(state = 4) AS discarded
    FROM {inbox}_state
    GROUP BY handler
),
ordered AS (
    SELECT *, state < 2 OR blocks = 1 AS open FROM {inbox}_state WHERE ordering_key IS NOT NULL
),
-- The leases of a run that were lost count for nothing.
keys AS (
    SELECT handler, ordering_key, sum(state = 1 AND worker IS NOT NULL) AS leased, sum(claimable) AS claimable,
        min(seq) FILTER (WHERE open) AS head, min(seq) FILTER (WHERE claimable = 1) AS front,
        min(seq) FILTER (WHERE state = 1 AND worker IS NOT NULL) AS leader
    FROM ordered
    GROUP BY handler, ordering_key
),
headed AS (
    SELECT k.*, s.state AS head_state FROM keys AS k LEFT JOIN {inbox}_state AS s ON s.seq = k.head
)
SELECT rule || ': ' || n FROM (
    SELECT 'a message without a state' AS rule, count(*) AS n FROM {inbox}_message
    WHERE seq NOT IN (SELECT seq FROM {inbox}_state)
    UNION ALL
    SELECT 'a state without a message', count(*) FROM {inbox}_state
    WHERE seq NOT IN (SELECT seq FROM {inbox}_message)
    UNION ALL
    SELECT 'names in two tables that differ', count(*)
    FROM {inbox}_state AS s JOIN {inbox}_message AS m USING (seq)
    WHERE s.handler <> m.handler OR s.ordering_key IS NOT m.ordering_key
    UNION ALL
    SELECT 'unordered, unfinished and not claimable', count(*) FROM {inbox}_state
    WHERE ordering_key IS NULL AND state < 2 AND claimable = 0
    UNION ALL
    SELECT 'leased behind another one and counted as an attempt', count(*) FROM {inbox}_state
    WHERE state = 1 AND claimable = 0 AND started > finished
    UNION ALL
    SELECT 'leased and hidden until another time than the end of the lease', count(*)
    FROM {inbox}_state WHERE state = 1 AND visible_at <> lease_until
    UNION ALL
    SELECT 'a key whose earliest leased message is not the one that can be claimed', count(*) FROM keys
    WHERE leased > 0 AND front IS NOT leader
    UNION ALL
    SELECT 'a key with two messages that can be claimed', count(*) FROM keys WHERE claimable > 1
    UNION ALL
    SELECT 'a key whose earliest unfinished message cannot be claimed', count(*) FROM headed
    WHERE leased = 0 AND head_state < 2 AND front IS NOT head
    UNION ALL
    SELECT 'a blocked key with a message that can be claimed', count(*) FROM headed
    WHERE leased = 0 AND head_state = 3 AND claimable > 0
    UNION ALL
    SELECT 'payload or result that is not told of, or is gone', count(*)
    FROM {inbox}_state AS s JOIN {inbox}_message AS m USING (seq)
    WHERE s.has_content <> (m.payload IS NOT NULL OR s.result IS NOT NULL)
    UNION ALL
    SELECT 'more attempts finished than started', count(*) FROM {inbox}_state
    WHERE finished > started
    UNION ALL
    SELECT 'a count that is wrong', count(*)
    FROM counted AS c FULL JOIN {inbox}_count AS k USING (handler)
    WHERE (coalesce(c.unfinished, 0), coalesce(c.processed, 0), coalesce(c.dead, 0), coalesce(c.discarded, 0))
        <> (coalesce(k.unfinished, 0), coalesce(k.processed, 0), coalesce(k.dead, 0), coalesce(k.discarded, 0))
)
WHERE n > 0

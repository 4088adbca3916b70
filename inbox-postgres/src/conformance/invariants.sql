-- Rules that do not hold in the tables of an inbox, and for how many rows. Knows their layout and nothing
-- of the store's own statements. At this level the server never refuses what only reads.
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
WITH work AS NOT MATERIALIZED (SELECT * FROM {schema}.inbox_work),
done AS NOT MATERIALIZED (SELECT * FROM {schema}.inbox_done),
message AS NOT MATERIALIZED (SELECT * FROM {schema}.inbox_message),
ordered AS NOT MATERIALIZED (
    SELECT w.*, w.state < 2 OR w.blocks AS open FROM work AS w WHERE w.ordering_key IS NOT NULL
),
keys AS (
    SELECT handler, ordering_key,
        count(*) FILTER (WHERE open) AS open,
        -- Those of a run that have lost their leases count for nothing.
        count(*) FILTER (WHERE state = 1 AND worker IS NOT NULL) AS leased,
        count(*) FILTER (WHERE claimable) AS claimable,
        min(seq) FILTER (WHERE open) AS head,
        min(seq) FILTER (WHERE claimable) AS current,
        min(seq) FILTER (WHERE state = 1 AND worker IS NOT NULL) AS first_leased,
        (array_agg(state ORDER BY seq) FILTER (WHERE open))[1] AS head_state
    FROM ordered
    GROUP BY handler, ordering_key
),
tally AS (
    SELECT handler, sum(pending) AS pending, sum(leased) AS leased, sum(processed) AS processed,
        sum(dead) AS dead, sum(discarded) AS discarded
    FROM {schema}.inbox_tally GROUP BY handler
),
counted AS (
    SELECT m.handler, count(*) FILTER (WHERE s.state = 0) AS pending,
        count(*) FILTER (WHERE s.state = 1) AS leased,
        count(*) FILTER (WHERE s.state = 2) AS processed,
        count(*) FILTER (WHERE s.state = 3) AS dead,
        count(*) FILTER (WHERE s.state = 4) AS discarded
    FROM message AS m
    JOIN (SELECT seq, state FROM work UNION ALL SELECT seq, state FROM done) AS s USING (seq)
    GROUP BY m.handler
)
SELECT rule || ': ' || n FROM (
    SELECT 'a message that stands nowhere or in two places' AS rule, count(*) AS n
    FROM message AS m
    WHERE (SELECT count(*) FROM work AS w WHERE w.seq = m.seq)
        + (SELECT count(*) FROM done AS d WHERE d.seq = m.seq) <> 1
    UNION ALL
    SELECT 'a state without a message', count(*)
    FROM (SELECT seq FROM work UNION ALL SELECT seq FROM done) AS s
    WHERE NOT EXISTS (SELECT FROM message AS m WHERE m.seq = s.seq)
    UNION ALL
    SELECT 'names in two tables that differ', count(*)
    FROM work AS w JOIN message AS m USING (seq)
    WHERE (w.handler, coalesce(w.ordering_key, '')) <> (m.handler, coalesce(m.ordering_key, ''))
    UNION ALL
    SELECT 'names in two tables that differ', count(*)
    FROM done AS d JOIN message AS m USING (seq)
    WHERE d.handler <> m.handler
    UNION ALL
    SELECT 'content that is there and is noted as dropped, or the reverse', count(*)
    FROM (
        SELECT seq, content, NULL::bytea AS result FROM work
        UNION ALL
        SELECT seq, content, result FROM done
    ) AS s
    JOIN message AS m USING (seq)
    WHERE s.content <> (m.payload IS NOT NULL OR s.result IS NOT NULL)
    UNION ALL
    SELECT 'unfinished, and without a payload', count(*)
    FROM work AS w JOIN message AS m USING (seq)
    WHERE w.state < 2 AND m.payload IS NULL
    UNION ALL
    SELECT 'unordered, unfinished and not claimable, or dead and claimable', count(*)
    FROM work
    WHERE (ordering_key IS NULL AND state < 2 AND NOT claimable) OR (state > 2 AND claimable)
    UNION ALL
    SELECT 'leased, and neither claimable nor behind others of a run', count(*)
    FROM work WHERE state = 1 AND NOT claimable AND NOT behind
    UNION ALL
    SELECT 'behind others of a run, and not leased', count(*)
    FROM work WHERE behind AND (state <> 1 OR ordering_key IS NULL)
    UNION ALL
    SELECT 'behind others of a run, claimable, and not late', count(*)
    FROM work WHERE behind AND claimable AND NOT late
    UNION ALL
    SELECT 'late, but not claimable, or neither pending nor behind others of a run', count(*)
    FROM work WHERE late AND (NOT claimable OR (state <> 0 AND NOT behind))
    UNION ALL
    SELECT 'a block without an ordering key or a death', count(*) FROM work
    WHERE blocks AND (ordering_key IS NULL OR state <> 3)
    UNION ALL
    SELECT 'a key of which not just the first leased message can be claimed', count(*)
    FROM keys WHERE leased > 0 AND (claimable <> 1 OR current <> first_leased)
    UNION ALL
    SELECT 'a key whose earliest unfinished message cannot be claimed', count(*)
    FROM keys
    WHERE leased = 0 AND open > 0 AND head_state < 2 AND (claimable <> 1 OR current <> head)
    UNION ALL
    SELECT 'a blocked key with a message that can be claimed', count(*)
    FROM keys WHERE leased = 0 AND head_state = 3 AND claimable > 0
    UNION ALL
    SELECT 'a key with unfinished messages and no row to lock', count(*)
    FROM keys AS k
    WHERE k.open > 0 AND NOT EXISTS (
        SELECT FROM {schema}.inbox_ordering AS o
        WHERE o.handler = k.handler AND o.ordering_key = k.ordering_key
    )
    UNION ALL
    SELECT 'a row to lock for a key without unfinished messages', count(*)
    FROM {schema}.inbox_ordering AS o
    WHERE NOT EXISTS (
        SELECT FROM keys AS k
        WHERE o.handler = k.handler AND o.ordering_key = k.ordering_key AND k.open > 0
    )
    UNION ALL
    SELECT 'dead without the time, or the time without the death', count(*) FROM work
    WHERE (state = 3) <> (finished_at IS NOT NULL)
    UNION ALL
    SELECT 'more attempts finished than started', count(*)
    FROM (SELECT started, finished FROM work UNION ALL SELECT started, finished FROM done) AS s
    WHERE finished > started
    UNION ALL
    SELECT 'a tally that is wrong', count(*)
    FROM tally AS t
    FULL JOIN counted AS c USING (handler)
    WHERE (
        coalesce(t.pending, 0), coalesce(t.leased, 0), coalesce(t.processed, 0),
        coalesce(t.dead, 0), coalesce(t.discarded, 0)
    ) <> (
        coalesce(c.pending, 0), coalesce(c.leased, 0), coalesce(c.processed, 0),
        coalesce(c.dead, 0), coalesce(c.discarded, 0)
    )
) AS checked
WHERE n > 0;
COMMIT;

-- Makes the next message of each ordering key the one that can be claimed: what is left of a run that is
-- leased, the first of it; the earliest unfinished one otherwise, unless that is dead. Forgets keys
-- without unfinished messages. The caller has locked the keys. Returns how many messages it made
-- claimable that no lease keeps.
CREATE OR REPLACE FUNCTION {inbox}_promote_key_heads(handlers text[], ordering_keys text[])
RETURNS bigint
{function_settings}
AS $$
#variable_conflict use_column
DECLARE
    -- Before the time: see `claim_cursor.sql`.
    number xid8 := pg_current_xact_id();
    instant timestamptz;
    heads bigint[];
    overtaken bigint[];
    empty tid[];
    promoted bigint := 0;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        -- What is seen may be older than the lock on the keys. Everything that decides below is
        -- locked first, which fails if it has changed since.
        PERFORM FROM unnest(handlers, ordering_keys) AS k (handler, ordering_key)
        CROSS JOIN LATERAL (
            SELECT FROM {inbox}_work AS w
            WHERE w.handler = k.handler AND w.ordering_key = k.ordering_key
              AND w.ordering_key IS NOT NULL AND (w.state < 2 OR w.blocks)
            ORDER BY w.seq LIMIT 1
            FOR UPDATE
        ) AS head;
        PERFORM FROM unnest(handlers, ordering_keys) AS k (handler, ordering_key)
        CROSS JOIN LATERAL (
            SELECT FROM {inbox}_work AS w
            WHERE w.handler = k.handler AND w.ordering_key = k.ordering_key
              AND w.ordering_key IS NOT NULL AND w.claimable
            FOR UPDATE
        ) AS current;
        PERFORM FROM unnest(handlers, ordering_keys) AS k (handler, ordering_key)
        CROSS JOIN LATERAL (
            SELECT FROM {inbox}_work AS w
            WHERE w.handler = k.handler AND w.behind AND w.ordering_key = k.ordering_key
              AND w.worker IS NOT NULL AND NOT w.claimable
            ORDER BY w.seq LIMIT 1
            FOR UPDATE
        ) AS member;
    END IF;
    LOOP
        SELECT array_agg(coalesce(member.seq, head.seq)) FILTER (
                WHERE current.seq IS NULL AND (member.seq IS NOT NULL OR head.state < 2)
            ),
            array_agg(current.seq) FILTER (
                WHERE (current.state = 0 OR (current.state = 1 AND current.worker IS NULL))
                  AND (member.seq IS NOT NULL OR current.seq <> head.seq)
            ),
            array_agg(o.at) FILTER (WHERE head.seq IS NULL)
        INTO heads, overtaken, empty
        FROM (SELECT DISTINCT * FROM unnest(handlers, ordering_keys)) AS k (handler, ordering_key)
        CROSS JOIN LATERAL (
            SELECT o.ctid AS at FROM {inbox}_ordering AS o
            WHERE o.handler = k.handler AND o.ordering_key = k.ordering_key
            OFFSET 0
        ) AS o
        LEFT JOIN LATERAL (
            SELECT w.seq, w.state FROM {inbox}_work AS w
            WHERE w.handler = k.handler AND w.ordering_key = k.ordering_key
              AND w.ordering_key IS NOT NULL AND (w.state < 2 OR w.blocks)
            ORDER BY w.seq LIMIT 1
        ) AS head ON true
        LEFT JOIN LATERAL (
            SELECT w.seq, w.state, w.worker FROM {inbox}_work AS w
            WHERE w.handler = k.handler AND w.ordering_key = k.ordering_key
              AND w.ordering_key IS NOT NULL AND w.claimable
            LIMIT 1
        ) AS current ON true
        -- Leased by a worker, and behind one that is not: that one has ended, or has gone back to pending.
        LEFT JOIN LATERAL (
            SELECT w.seq FROM {inbox}_work AS w
            WHERE (current.seq IS NULL OR current.state = 0 OR current.worker IS NULL)
              AND w.handler = k.handler AND w.behind AND w.ordering_key = k.ordering_key
              AND w.worker IS NOT NULL AND NOT w.claimable
            ORDER BY w.seq LIMIT 1
        ) AS member ON true;
        EXIT WHEN overtaken IS NULL;
        -- An earlier message is back, or one of a run. A claim does not wait for the key's lock and may
        -- just have leased the later one, which then stays first; so look again.
        UPDATE {inbox}_work SET claimable = false, late = false
        WHERE seq = ANY (overtaken) AND (state = 0 OR worker IS NULL);
    END LOOP;

    IF heads IS NOT NULL THEN
        instant := {inbox}_now();
        -- The attempt of a run's next message counts, unless its lease has run out.
        WITH moved AS (
            UPDATE {inbox}_work
            SET claimable = true,
                late = NOT (behind AND visible_at > instant AND worker IS NOT NULL),
                behind = behind AND (visible_at <= instant OR worker IS NULL),
                started = started
                    + (behind AND visible_at > instant AND worker IS NOT NULL)::integer
            WHERE seq = ANY (heads)
            RETURNING late
        )
        SELECT count(*) INTO promoted FROM moved WHERE late;
    END IF;
    IF empty IS NOT NULL THEN
        DELETE FROM {inbox}_ordering WHERE ctid = ANY (empty);
    END IF;
    RETURN promoted;
END
$$;

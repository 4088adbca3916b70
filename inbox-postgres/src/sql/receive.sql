-- Stores the messages whose keys are not known yet. `stored` are their places in the batch, counted
-- from 0; `known` those of the others, with the fingerprints that their keys were accepted with. The
-- arrays are in order of handler and id, so that two batches with the same keys wait for each other
-- instead of deadlocking; `places` says where each message stood in the batch, which is the order of
-- acceptance. Due times and delays (in microseconds) are in order of places. An array in which nothing
-- is given may be NULL. `alone`: not within a longer transaction of the caller's.
CREATE OR REPLACE FUNCTION {inbox}_receive(
    handlers text[], ids text[], kinds text[], content_types text[], ordering_keys text[],
    all_headers text[], payloads {payload}[], fingerprints bigint[], places integer[],
    due_ats timestamptz[], delays bigint[], wake boolean, alone boolean,
    OUT stored integer[], OUT known integer[], OUT kept_fingerprints bigint[]
)
{function_settings}
AS $$
#variable_conflict use_column
DECLARE
    -- Before the time: see `claim_cursor.sql`.
    number xid8 := pg_current_xact_id();
    instant timestamptz := {inbox}_now();
    blocks bigint[];
    ordered_seqs bigint[];
    ordered_handlers text[];
    ordered_keys text[];
    locked_handlers text[];
    locked_keys text[];
    fresh boolean[];
BEGIN
    IF alone THEN
        {require_read_committed}
    END IF;
    -- {if partitioned}
    -- Before a number is drawn, so that its partition cannot be dropped before its row is there.
    LOCK TABLE ONLY {inbox}_message IN ROW EXCLUSIVE MODE;
    -- {end}
    SELECT array_agg(nextval('{inbox}_seq')) INTO blocks
    FROM generate_series(0, (cardinality(ids) - 1) / 1000);

    WITH
    -- {if partitioned}
    first AS (
        INSERT INTO {keys} (handler, id, seq, fingerprint)
        SELECT g.handler, g.id, blocks[g.place / 1000 + 1] + g.place % 1000, g.fingerprint
        FROM unnest(handlers, ids, fingerprints, places) AS g (handler, id, fingerprint, place)
        ON CONFLICT (handler, id) DO NOTHING
        RETURNING seq
    ), new AS (
        INSERT INTO {inbox}_message (
            seq, accepted_at, fingerprint, handler, id, kind, content_type, ordering_key, headers,
            payload
        )
        SELECT n.seq, instant, g.fingerprint,
            g.handler, g.id, g.kind, g.content_type, g.ordering_key, g.headers::json, g.payload
        FROM unnest(
            handlers, ids, kinds, content_types, ordering_keys, all_headers, payloads, fingerprints,
            places
        ) AS g (
            handler, id, kind, content_type, ordering_key, headers, payload, fingerprint, place
        )
        CROSS JOIN LATERAL (
            SELECT blocks[g.place / 1000 + 1] + g.place % 1000 AS seq
        ) AS n
        -- Not a join: of arrays whose length it does not know the planner may loop over both.
        WHERE (n.seq IN (SELECT seq FROM first)) IS TRUE
        RETURNING seq, handler, ordering_key,
            (array_position(blocks, seq - seq % 1000) - 1) * 1000 + (seq % 1000)::integer AS place
    ),
    -- {else}
    new AS (
        INSERT INTO {inbox}_message (
            seq, accepted_at, fingerprint, handler, id, kind, content_type, ordering_key, headers,
            payload
        )
        SELECT blocks[g.place / 1000 + 1] + g.place % 1000, instant, g.fingerprint,
            g.handler, g.id, g.kind, g.content_type, g.ordering_key, g.headers::json, g.payload
        FROM unnest(
            handlers, ids, kinds, content_types, ordering_keys, all_headers, payloads, fingerprints,
            places
        ) AS g (
            handler, id, kind, content_type, ordering_key, headers, payload, fingerprint, place
        )
        ON CONFLICT (handler, id) DO NOTHING
        RETURNING seq, handler, ordering_key,
            (array_position(blocks, seq - seq % 1000) - 1) * 1000 + (seq % 1000)::integer AS place
    ),
    -- {end}
    queued AS (
        INSERT INTO {inbox}_work (
            seq, visible_at, due_at, token, started, finished, replays, state, claimable, blocks,
            handler
        )
        SELECT seq, due, due, 0, 0, 0, 0, 0, true, false, handler
        FROM new
        CROSS JOIN LATERAL (
            SELECT greatest(instant, coalesce(
                due_ats[place + 1], instant + delays[place + 1] * interval '1 microsecond'
            )) AS due
        ) AS resolved
        WHERE ordering_key IS NULL
    ), counted AS (
        INSERT INTO {inbox}_tally (handler, pending)
        SELECT handler, count(*) FROM new GROUP BY handler
    )
    SELECT array_agg(place),
        array_agg(seq) FILTER (WHERE ordering_key IS NOT NULL),
        array_agg(handler) FILTER (WHERE ordering_key IS NOT NULL),
        array_agg(ordering_key) FILTER (WHERE ordering_key IS NOT NULL)
    INTO stored, ordered_seqs, ordered_handlers, ordered_keys
    FROM new;

    IF ordered_seqs IS NOT NULL THEN
        SELECT array_agg(k.handler), array_agg(k.ordering_key), array_agg(k.fresh)
        INTO locked_handlers, locked_keys, fresh
        FROM {inbox}_lock_keys(ordered_handlers, ordered_keys) AS k;

        INSERT INTO {inbox}_work (
            seq, visible_at, due_at, token, started, finished, replays, state, claimable, blocks,
            handler, ordering_key
        )
        SELECT seq, due, due, 0, 0, 0, 0, 0,
            fresh AND row_number() OVER (PARTITION BY handler, ordering_key ORDER BY seq) = 1,
            false, handler, ordering_key
        FROM unnest(ordered_seqs, ordered_handlers, ordered_keys)
            AS n (seq, handler, ordering_key)
        JOIN unnest(locked_handlers, locked_keys, fresh) AS k (handler, ordering_key, fresh)
            USING (handler, ordering_key)
        CROSS JOIN LATERAL (
            SELECT (array_position(blocks, seq - seq % 1000) - 1) * 1000
                + (seq % 1000)::integer AS place
        ) AS placed
        CROSS JOIN LATERAL (
            SELECT greatest(instant, coalesce(
                due_ats[place + 1], instant + delays[place + 1] * interval '1 microsecond'
            )) AS due
        ) AS resolved;

        -- A transaction that drew later numbers may have come first.
        PERFORM {inbox}_promote_key_heads(array_agg(handler), array_agg(ordering_key))
        FROM unnest(locked_handlers, locked_keys, fresh) AS k (handler, ordering_key, fresh)
        WHERE NOT fresh
        HAVING count(*) > 0;
    END IF;

    IF cardinality(stored) IS DISTINCT FROM cardinality(ids) THEN
        SELECT array_agg(g.place), array_agg(k.fingerprint) INTO known, kept_fingerprints
        FROM unnest(handlers, ids, places) AS g (handler, id, place)
        CROSS JOIN LATERAL (
            SELECT k.fingerprint FROM {keys} AS k
            WHERE k.handler = g.handler AND k.id = g.id
            OFFSET 0
        ) AS k
        WHERE g.place NOT IN (SELECT unnest(stored));
        {rest_on_others}
    END IF;

    IF wake AND stored IS NOT NULL THEN
        PERFORM pg_notify('{channel}', '');
    END IF;
    {compact_counters_sometimes}
END
$$;

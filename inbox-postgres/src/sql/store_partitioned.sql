first AS (
        INSERT INTO {keys} (handler, id, seq)
        SELECT g.handler, g.id, blocks[g.place / 1000 + 1] + g.place % 1000
        FROM unnest(handlers, ids, places) AS g (handler, id, place)
        ON CONFLICT (handler, id) DO NOTHING
        RETURNING seq
    ), new AS (
        INSERT INTO {message} (
            seq, accepted_at, handler, id, kind, content_type, ordering_key, headers, payload
        )
        SELECT n.seq, instant,
            g.handler, g.id, g.kind, g.content_type, g.ordering_key, g.headers::json, g.payload
        FROM unnest(
            handlers, ids, kinds, content_types, ordering_keys, all_headers, payloads, places
        ) AS g (handler, id, kind, content_type, ordering_key, headers, payload, place)
        CROSS JOIN LATERAL (
            SELECT blocks[g.place / 1000 + 1] + g.place % 1000 AS seq
        ) AS n
        -- Not a join: of arrays whose length it does not know the planner may loop over both.
        WHERE (n.seq IN (SELECT seq FROM first)) IS TRUE
        RETURNING seq, handler, ordering_key,
            (array_position(blocks, seq - seq % 1000) - 1) * 1000 + (seq % 1000)::integer AS place
    )

INSERT INTO {message} (
            seq, accepted_at, handler, id, kind, content_type, ordering_key, headers, payload
        )
        SELECT blocks[g.place / 1000 + 1] + g.place % 1000, instant,
            g.handler, g.id, g.kind, g.content_type, g.ordering_key, g.headers::json, g.payload
        FROM unnest(
            handlers, ids, kinds, content_types, ordering_keys, all_headers, payloads, places
        ) AS g (handler, id, kind, content_type, ordering_key, headers, payload, place)
        ON CONFLICT (handler, id) DO NOTHING

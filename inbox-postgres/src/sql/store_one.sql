INSERT INTO {message} (
            seq, accepted_at, handler, id, kind, content_type, ordering_key, headers, payload
        )
        VALUES (
            nextval('{sequence}'), instant, new_handler, new_id, new_kind, new_content_type,
            new_ordering_key, new_headers::json, new_payload
        )
        ON CONFLICT (handler, id) DO NOTHING
        RETURNING seq INTO found_seq;

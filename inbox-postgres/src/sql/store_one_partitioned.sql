INSERT INTO {keys} (handler, id, seq)
        VALUES (new_handler, new_id, nextval('{sequence}'))
        ON CONFLICT (handler, id) DO NOTHING
        RETURNING seq INTO found_seq;
        IF found_seq IS NOT NULL THEN
            INSERT INTO {message} (
                seq, accepted_at, handler, id, kind, content_type, ordering_key, headers, payload
            )
            VALUES (
                found_seq, instant, new_handler, new_id, new_kind, new_content_type,
                new_ordering_key, new_headers::json, new_payload
            );
        END IF;

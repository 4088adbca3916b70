CASE WHEN signed_by IS NULL THEN history ELSE
                jsonb_path_query_array(
                    coalesce(history, '[]') || jsonb_build_array(jsonb_build_object(
                        'intervention', intervention,
                        'at', (extract(epoch FROM instant) * 1000000)::bigint,
                        'by', signed_by
                    )),
                    '$[last - {kept_entries} + 1 to last]'
                )
            END

CASE
        WHEN ?3 IS NULL OR NOT json_valid(coalesce(history, '[]')) THEN history
        ELSE json_insert(
            CASE
                WHEN json_array_length(history) >= {kept} THEN json_remove(history, '$[0]')
                ELSE coalesce(history, '[]')
            END,
            '$[#]', json_object('intervention', {kind}, 'at', ?2, 'by', ?3)
        )
    END

-- ?1 settlements as JSON arrays, ?2 all results one after the other, ?3 now. An attempt that is not counted
-- yet (see schema_1.sql) is counted first.
UPDATE {inbox}_state
SET state = j.new_state,
    claimable = claimable AND j.new_state = 0,
    lease_until = iif(j.new_state = 0, ?3, NULL),
    due_at = coalesce(j.due, due_at),
    visible_at = coalesce(j.due, due_at),
    started = started + (started <= finished) - 1 + j.finishes,
    finished = finished + j.finishes,
    finished_at = iif(j.new_state = 0, NULL, ?3),
    last_error = coalesce(j.error, last_error),
    blocks = j.blocks = 1 AND ordering_key IS NOT NULL,
    result = iif(j.result_at IS NULL, NULL, substr(?2, j.result_at, j.result_bytes)),
    -- One that does not read stays as it is, to be looked at.
    history = CASE
        WHEN j.past_end IS NULL OR NOT json_valid(coalesce(history, '[]')) THEN history
        ELSE json_insert(
            CASE
                WHEN json_array_length(history) >= {kept} THEN json_remove(history, '$[0]')
                ELSE coalesce(history, '[]')
            END,
            '$[#]',
            json_object(
                'attempt', started + (started <= finished), 'replays', replays, 'worker', worker,
                'leased_at', leased_at, 'ended_at', ?3, 'end', j.past_end,
                'error', substr(j.error, 1, j.past_characters)
            )
        )
    END
FROM (
    SELECT value ->> 0 AS row, value ->> 1 AS held, value ->> 2 AS new_state,
        value ->> 3 AS finishes, value ->> 4 AS due, value ->> 5 AS error, value ->> 6 AS blocks,
        value ->> 7 AS result_at, value ->> 8 AS result_bytes,
        value ->> 9 AS past_end, value ->> 10 AS past_characters
    FROM json_each(?1)
) AS j
WHERE seq = j.row AND token = j.held AND state = 1
RETURNING seq, token, ordering_key IS NOT NULL

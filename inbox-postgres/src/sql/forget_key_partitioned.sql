-- Its partition was dropped, and only the key is still there: not known any more.
        WITH gone AS (
            DELETE FROM {keys} AS k
            USING {partition} AS p
            WHERE k.handler = new_handler AND k.id = new_id AND k.seq = found_seq
              AND p.number = found_seq / {width} AND p.dropped_state IS NOT NULL
            RETURNING p.dropped_state
        )
        INSERT INTO {tally} (handler, processed, discarded)
        SELECT new_handler, -(dropped_state = 2)::integer, -(dropped_state = 4)::integer
        FROM gone;

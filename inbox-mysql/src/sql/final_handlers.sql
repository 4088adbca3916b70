-- The handlers with messages in a final state.
SELECT handler FROM {tally} GROUP BY handler HAVING SUM({column}) > 0 {all_rows};

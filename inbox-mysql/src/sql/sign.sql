-- Notes in the messages of @inbox_seqs, which are in this table now, who did what to them.
UPDATE {seqs} AS j STRAIGHT_JOIN {table} AS r FORCE INDEX (PRIMARY) ON r.seq = j.seq
SET r.history = SUBSTRING_INDEX(
    CONCAT_WS(x'0a', r.history, JSON_OBJECT(
        'intervention', {kind}, 'at', CAST(@inbox_now AS SIGNED), 'by', CONVERT({by} USING utf8mb4)
    )), x'0a', -{kept_entries}
);

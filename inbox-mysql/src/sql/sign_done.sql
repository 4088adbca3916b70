-- Notes in the messages of @inbox_seqs that are over who did what to them.
UPDATE {seqs} AS j STRAIGHT_JOIN {done} AS f FORCE INDEX (PRIMARY) ON f.seq = j.seq
SET f.history = SUBSTRING_INDEX(
    CONCAT_WS(x'0a', f.history, JSON_OBJECT(
        'intervention', {kind}, 'at', CAST(@inbox_now AS SIGNED), 'by', CONVERT({by} USING utf8mb4)
    )), x'0a', -{kept_entries}
);

-- Notes in the messages of @inbox_seqs that wait who did what to them.
UPDATE {seqs} AS j STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq
SET w.history = SUBSTRING_INDEX(
    CONCAT_WS(x'0a', w.history, JSON_OBJECT(
        'intervention', {kind}, 'at', CAST(@inbox_now AS SIGNED), 'by', CONVERT({by} USING utf8mb4)
    )), x'0a', -{kept_entries}
);

SUBSTRING_INDEX(CONCAT_WS(x'0a', w.history, JSON_OBJECT(
    'attempt', {counted}, 'replays', w.replays, 'worker', CONVERT(w.worker USING utf8mb4),
    'leased_at', NULLIF(w.leased_at, 0), 'ended_at', CAST(@inbox_now AS SIGNED),
    'end', IF(j.outcome = 3, 'dead', IF(j.back = 1, 'retried', 'deferred')),
    'error', CONVERT(LEFT(UNHEX(j.error), j.short_bytes) USING utf8mb4)
)), x'0a', -{kept_entries})

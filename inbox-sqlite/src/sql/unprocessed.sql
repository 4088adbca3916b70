-- Of each handler, those of the states asked for, and some others: what can be claimed; what has an ordering key and
-- is unfinished; what is dead or discarded. The sign keeps SQLite from looking by number instead.
SELECT q.seq
    FROM {inbox}_count AS n
    CROSS JOIN {inbox}_state AS q ON q.handler = n.handler
    WHERE (?5 IS NULL OR n.handler = ?5)
      AND (SELECT min(value) FROM json_each(?4)) < 2
      AND q.claimable = 1 AND +q.seq {beyond} ?1
    UNION ALL
    SELECT q.seq
    FROM {inbox}_count AS n
    CROSS JOIN {inbox}_state AS q ON q.handler = n.handler
    WHERE (?5 IS NULL OR n.handler = ?5)
      AND (SELECT min(value) FROM json_each(?4)) < 2
      AND q.ordering_key IS NOT NULL AND (q.state < 2 OR q.blocks = 1) AND +q.seq {beyond} ?1
    UNION ALL
    SELECT q.seq
    FROM {inbox}_count AS n
    CROSS JOIN {inbox}_state AS q ON q.handler = n.handler
    WHERE (?5 IS NULL OR n.handler = ?5)
      AND q.state IN (SELECT value FROM json_each(?4) WHERE value > 2)
      AND q.finished_at IS NOT NULL AND +q.seq {beyond} ?1

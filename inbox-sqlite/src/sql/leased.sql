-- Of each handler: the index on leases has them first. The sign keeps SQLite from looking by number instead.
SELECT q.seq
    FROM {inbox}_count AS n
    CROSS JOIN {inbox}_state AS q ON q.handler = n.handler
    WHERE (?5 IS NULL OR n.handler = ?5)
      AND q.state = 1 AND q.lease_until > ?3 AND +q.seq {beyond} ?1

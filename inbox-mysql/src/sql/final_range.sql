-- The final messages of one handler that have been so for longest, with or without content.
(
    SELECT x.seq, x.finished_at FROM {table} AS x FORCE INDEX (expired)
    WHERE x.handler = {handler}{state} AND x.kept = {kept} AND x.finished_at <= {until}
    ORDER BY x.finished_at, x.seq LIMIT {limit} {locking}
);

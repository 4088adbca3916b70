-- The next final messages of one handler, with or without content, that have been so for longest.
(
    SELECT {place} AS place, x.finished_at, x.seq FROM {table} AS x FORCE INDEX (expired)
    WHERE x.handler = {handler}{state} AND x.kept = {kept}{behind} AND x.finished_at <= {until}
    ORDER BY x.finished_at, x.seq LIMIT {limit}
);

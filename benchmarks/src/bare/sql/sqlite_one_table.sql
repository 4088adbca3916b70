CREATE TABLE bare (
    seq INTEGER PRIMARY KEY,
    handler TEXT NOT NULL,
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    headers TEXT NOT NULL,
    payload BLOB NOT NULL,
    state INTEGER NOT NULL DEFAULT 0,
    visible_at INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    token INTEGER NOT NULL DEFAULT 0,
    finished_at INTEGER,
    UNIQUE (handler, id)
) STRICT;
CREATE INDEX bare_due ON bare (handler, visible_at, seq) WHERE state = 0;

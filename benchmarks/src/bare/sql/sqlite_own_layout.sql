CREATE TABLE message (
    seq INTEGER PRIMARY KEY,
    handler TEXT NOT NULL,
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    headers TEXT NOT NULL,
    payload BLOB NOT NULL,
    visible_at INTEGER NOT NULL,
    UNIQUE (handler, id)
) STRICT;
CREATE TABLE state (
    seq INTEGER PRIMARY KEY,
    handler TEXT NOT NULL,
    state INTEGER NOT NULL DEFAULT 0,
    visible_at INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    token INTEGER NOT NULL DEFAULT 0,
    finished_at INTEGER
) STRICT;
CREATE INDEX state_due ON state (handler, visible_at, seq) WHERE state = 0;
CREATE INDEX state_leased ON state (handler, visible_at) WHERE state = 1;
CREATE INDEX state_final ON state (state, finished_at, seq) WHERE finished_at IS NOT NULL;

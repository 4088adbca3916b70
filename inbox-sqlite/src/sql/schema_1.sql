CREATE TABLE {inbox}_message (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    handler TEXT NOT NULL,
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    content_type TEXT,
    headers TEXT NOT NULL,
    ordering_key TEXT,
    accepted_at INTEGER NOT NULL,
    first_due_at INTEGER NOT NULL,
    payload_bytes INTEGER,
    payload BLOB,
    UNIQUE (handler, id),
    CHECK ((payload IS NULL) = (payload_bytes IS NULL))
) STRICT;

CREATE TABLE {inbox}_state (
    seq INTEGER PRIMARY KEY,
    handler TEXT NOT NULL,
    ordering_key TEXT,
    state INTEGER NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 4),
    claimable INTEGER NOT NULL CHECK (claimable IN (0, 1)),
    visible_at INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    lease_until INTEGER,
    token INTEGER NOT NULL DEFAULT 0,
    started INTEGER NOT NULL DEFAULT 0 CHECK (started >= 0),
    finished INTEGER NOT NULL DEFAULT 0 CHECK (finished >= 0),
    replays INTEGER NOT NULL DEFAULT 0 CHECK (replays >= 0),
    worker TEXT,
    finished_at INTEGER,
    last_error TEXT,
    result BLOB,
    blocks INTEGER NOT NULL DEFAULT 0 CHECK (blocks IN (0, 1)),
    CHECK (claimable = 0 OR state < 2),
    CHECK ((state = 1) = (lease_until IS NOT NULL)),
    CHECK ((state >= 2) = (finished_at IS NOT NULL)),
    CHECK (blocks = 0 OR (state = 3 AND ordering_key IS NOT NULL))
) STRICT;

-- What a claim scans: due and not held up by an earlier message of the same ordering key.
CREATE INDEX {inbox}_claim ON {inbox}_state (handler, visible_at, seq)
    WHERE claimable = 1;

-- Leases, to tell those that have run out from the others without looking at the backlog.
CREATE INDEX {inbox}_leased ON {inbox}_state (handler, lease_until)
    WHERE state = 1;

-- The unfinished messages of each ordering key, the earliest first.
CREATE INDEX {inbox}_open ON {inbox}_state (handler, ordering_key, seq)
    WHERE ordering_key IS NOT NULL AND (state < 2 OR blocks = 1);

-- At most one message of an ordering key can be claimed or leased at any time.
CREATE UNIQUE INDEX {inbox}_head ON {inbox}_state (handler, ordering_key)
    WHERE ordering_key IS NOT NULL AND claimable = 1;

-- Retention: the longest finished first.
CREATE INDEX {inbox}_final ON {inbox}_state (state, finished_at, seq)
    WHERE finished_at IS NOT NULL;

-- Dead letters in order of acceptance, however long the history beside them.
CREATE INDEX {inbox}_dead ON {inbox}_state (seq)
    WHERE state = 3;

-- Messages by handler and stored state, so that statistics never count rows.
CREATE TABLE {inbox}_count (
    handler TEXT NOT NULL,
    state INTEGER NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (handler, state)
) STRICT, WITHOUT ROWID;

CREATE TABLE {inbox}_meta (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    marker TEXT NOT NULL,
    version INTEGER NOT NULL
) STRICT;

CREATE TRIGGER {inbox}_accepted AFTER INSERT ON {inbox}_message
BEGIN
    INSERT INTO {inbox}_state (seq, handler, ordering_key, claimable, visible_at, due_at)
    VALUES (
        NEW.seq, NEW.handler, NEW.ordering_key,
        NEW.ordering_key IS NULL OR NOT EXISTS (
            SELECT 1 FROM {inbox}_state
            WHERE handler = NEW.handler AND ordering_key = NEW.ordering_key
              AND ordering_key IS NOT NULL AND (state < 2 OR blocks = 1)
        ),
        NEW.first_due_at, NEW.first_due_at
    );
    INSERT INTO {inbox}_count (handler, state, n) VALUES (NEW.handler, 0, 1)
    ON CONFLICT (handler, state) DO UPDATE SET n = n + 1;
END;

CREATE TRIGGER {inbox}_purged AFTER DELETE ON {inbox}_message
BEGIN
    DELETE FROM {inbox}_state WHERE seq = OLD.seq;
END;

CREATE TRIGGER {inbox}_recounted AFTER UPDATE OF state ON {inbox}_state
WHEN NEW.state <> OLD.state
BEGIN
    UPDATE {inbox}_count SET n = n - 1 WHERE handler = OLD.handler AND state = OLD.state;
    INSERT INTO {inbox}_count (handler, state, n) VALUES (NEW.handler, NEW.state, 1)
    ON CONFLICT (handler, state) DO UPDATE SET n = n + 1;
END;

-- Whatever ends a lease, replays or discards: the earliest open message of its ordering key
-- becomes the one that can be claimed, unless one is leased.
CREATE TRIGGER {inbox}_reheaded AFTER UPDATE OF state ON {inbox}_state
WHEN NEW.ordering_key IS NOT NULL AND NEW.state <> 1
BEGIN
    UPDATE {inbox}_state SET claimable = 0
    WHERE handler = NEW.handler AND ordering_key = NEW.ordering_key
      AND ordering_key IS NOT NULL AND claimable = 1 AND state = 0
      AND seq > (
          SELECT seq FROM {inbox}_state
          WHERE handler = NEW.handler AND ordering_key = NEW.ordering_key
            AND ordering_key IS NOT NULL AND (state < 2 OR blocks = 1)
          ORDER BY seq LIMIT 1
      );
    UPDATE {inbox}_state SET claimable = 1
    WHERE seq = (
          SELECT seq FROM {inbox}_state
          WHERE handler = NEW.handler AND ordering_key = NEW.ordering_key
            AND ordering_key IS NOT NULL AND (state < 2 OR blocks = 1)
          ORDER BY seq LIMIT 1
      )
      AND state = 0
      AND NOT EXISTS (
          SELECT 1 FROM {inbox}_state
          WHERE handler = NEW.handler AND ordering_key = NEW.ordering_key
            AND ordering_key IS NOT NULL AND claimable = 1
      );
END;

CREATE TRIGGER {inbox}_removed AFTER DELETE ON {inbox}_state
BEGIN
    UPDATE {inbox}_count SET n = n - 1 WHERE handler = OLD.handler AND state = OLD.state;
    -- A dead message that blocked its ordering key has gone.
    UPDATE {inbox}_state SET claimable = 1
    WHERE OLD.blocks = 1
      AND seq = (
          SELECT seq FROM {inbox}_state
          WHERE handler = OLD.handler AND ordering_key = OLD.ordering_key
            AND ordering_key IS NOT NULL AND (state < 2 OR blocks = 1)
          ORDER BY seq LIMIT 1
      )
      AND state = 0
      AND NOT EXISTS (
          SELECT 1 FROM {inbox}_state
          WHERE handler = OLD.handler AND ordering_key = OLD.ordering_key
            AND ordering_key IS NOT NULL AND claimable = 1
      );
END;

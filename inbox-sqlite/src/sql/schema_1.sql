CREATE TABLE {inbox}_message (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    handler TEXT NOT NULL,
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    content_type TEXT,
    headers TEXT NOT NULL,
    ordering_key TEXT,
    -- Of the message that was accepted, whatever becomes of its payload.
    fingerprint INTEGER NOT NULL,
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
    -- The end of the lease, also of the last one of a message that was put back.
    lease_until INTEGER,
    token INTEGER NOT NULL DEFAULT 0,
    -- Attempts. As long as a leased message has no more started than finished, the present one is not counted:
    -- others of its run come first, or did when the lease ran out.
    started INTEGER NOT NULL DEFAULT 0 CHECK (started >= 0),
    finished INTEGER NOT NULL DEFAULT 0 CHECK (finished >= 0),
    replays INTEGER NOT NULL DEFAULT 0 CHECK (replays >= 0),
    worker TEXT,
    leased_at INTEGER,
    finished_at INTEGER,
    last_error TEXT,
    result BLOB,
    -- Whether there is a payload or a result.
    has_content INTEGER NOT NULL DEFAULT 1 CHECK (has_content IN (0, 1)),
    blocks INTEGER NOT NULL DEFAULT 0 CHECK (blocks IN (0, 1)),
    -- Attempts that ended with an error, the oldest first, as a JSON array.
    history TEXT,
    CHECK (claimable = 0 OR state < 2),
    CHECK (state <> 1 OR lease_until IS NOT NULL),
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

-- Those of each run that are behind the first, which is the earliest leased one of its ordering key.
CREATE INDEX {inbox}_run ON {inbox}_state (handler, ordering_key, seq)
    WHERE claimable = 0 AND state = 1;

-- At most one message of an ordering key can be claimed at any time. The others that are leased are behind
-- it.
CREATE UNIQUE INDEX {inbox}_head ON {inbox}_state (handler, ordering_key)
    WHERE ordering_key IS NOT NULL AND claimable = 1;

-- Retention: the longest finished of each handler first, and apart those that have no content left.
CREATE INDEX {inbox}_final ON {inbox}_state (handler, state, has_content, finished_at, seq)
    WHERE finished_at IS NOT NULL;

-- Dead letters in order of acceptance, however long the history is.
CREATE INDEX {inbox}_dead ON {inbox}_state (seq)
    WHERE state = 3;

-- Dead letters that hold up their ordering key, to be counted by themselves.
CREATE INDEX {inbox}_blocking ON {inbox}_state (handler)
    WHERE blocks = 1;

-- Messages of each handler: those that are pending or leased, and those in each final state. So statistics
-- count leases only, and a claim changes nothing here.
CREATE TABLE {inbox}_count (
    handler TEXT NOT NULL PRIMARY KEY,
    unfinished INTEGER NOT NULL DEFAULT 0,
    processed INTEGER NOT NULL DEFAULT 0,
    dead INTEGER NOT NULL DEFAULT 0,
    discarded INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- The handlers whose messages are not handed out.
CREATE TABLE {inbox}_paused (
    handler TEXT NOT NULL PRIMARY KEY
) STRICT, WITHOUT ROWID;

-- One row. A second one is that of a dump which was loaded into an inbox that had been set up: its
-- messages have met the triggers, and are not as they were.
CREATE TABLE {inbox}_meta (
    marker TEXT NOT NULL,
    version INTEGER NOT NULL,
    -- The oldest version whose builds work with this one, too.
    works_from INTEGER NOT NULL,
    -- Counts the texts that the triggers of this version have had.
    revision INTEGER NOT NULL
) STRICT;

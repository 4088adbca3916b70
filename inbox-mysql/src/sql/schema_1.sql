-- What was received. Written once and, but for dropped and edited payloads, never changed. Numbers
-- come from the table's own counter, which is above every number in it, also after a dump was loaded.
-- Batch: drawn by lot for each receive, which finds by it what it has stored. Fingerprint: of the first copy,
-- whatever becomes of the payload.
-- Times are microseconds since 1970-01-01 UTC, so that no time zone and no SQL mode can touch
-- them. Texts are bytes of UTF-8, so that keys compare byte for byte.
CREATE TABLE IF NOT EXISTS {message} (
    seq BIGINT NOT NULL AUTO_INCREMENT,
    handler VARBINARY(128) NOT NULL,
    id VARBINARY(255) NOT NULL,
    kind VARBINARY(255) NOT NULL,
    content_type VARBINARY(255) NULL,
    headers MEDIUMBLOB NOT NULL,
    ordering_key VARBINARY(255) NULL,
    accepted_at BIGINT NOT NULL,
    first_due_at BIGINT NOT NULL,
    batch BIGINT NOT NULL,
    fingerprint BIGINT NOT NULL,
    payload_bytes BIGINT NULL,
    payload {payload_type} NULL,
    PRIMARY KEY (seq),
    UNIQUE KEY message_key (handler, id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- The messages that are pending or leased. Queue: 0 pending and first of its ordering key, or
-- without one; 1 leased; 2 behind an earlier message of its ordering key; 3 leased behind others of its
-- run. A claim reads queues 0 and 1 from the front of the index; what waits in queues 2 and 3 costs it
-- nothing. Started: as long as a leased message has no more attempts started than finished, the present one
-- is not counted: others of its run come first, or did when its lease ran out. Worker: zero bytes until
-- there is one; NULL if the lease was lost with a run, behind one that another worker took. Leased at: when
-- its last attempt was leased, 0 before the first. History: what became of earlier attempts, a line of JSON
-- each.
CREATE TABLE IF NOT EXISTS {work} (
    seq BIGINT NOT NULL,
    handler VARBINARY(128) NOT NULL,
    ordering_key VARBINARY(255) NULL,
    queue TINYINT NOT NULL,
    visible_at BIGINT NOT NULL,
    due_at BIGINT NOT NULL,
    leased_at BIGINT NOT NULL,
    token BIGINT NOT NULL,
    started BIGINT NOT NULL,
    finished BIGINT NOT NULL,
    replays BIGINT NOT NULL,
    worker VARBINARY(128) NULL,
    last_error VARBINARY(4096) NULL,
    history MEDIUMBLOB NULL,
    PRIMARY KEY (seq),
    KEY claim (handler, queue, visible_at, seq)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Dead letters, in a separate table so that looking through them reads neither the backlog
-- nor the history. Kept: 1 while there is a payload, 0 once it is dropped.
CREATE TABLE IF NOT EXISTS {dead} (
    seq BIGINT NOT NULL,
    handler VARBINARY(128) NOT NULL,
    due_at BIGINT NOT NULL,
    leased_at BIGINT NOT NULL,
    token BIGINT NOT NULL,
    started BIGINT NOT NULL,
    finished BIGINT NOT NULL,
    replays BIGINT NOT NULL,
    worker VARBINARY(128) NULL,
    last_error VARBINARY(4096) NULL,
    finished_at BIGINT NOT NULL,
    blocks TINYINT NOT NULL,
    kept TINYINT NOT NULL,
    history MEDIUMBLOB NULL,
    PRIMARY KEY (seq),
    KEY expired (handler, kept, finished_at, seq),
    KEY blocking (blocks, handler)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- The messages that are processed (state 2) or discarded (state 4). Kept: 1 while there is a payload or a
-- result, 0 once both are dropped.
CREATE TABLE IF NOT EXISTS {done} (
    seq BIGINT NOT NULL,
    handler VARBINARY(128) NOT NULL,
    state TINYINT NOT NULL,
    due_at BIGINT NOT NULL,
    leased_at BIGINT NOT NULL,
    token BIGINT NOT NULL,
    started BIGINT NOT NULL,
    finished BIGINT NOT NULL,
    replays BIGINT NOT NULL,
    worker VARBINARY(128) NULL,
    last_error VARBINARY(4096) NULL,
    finished_at BIGINT NOT NULL,
    kept TINYINT NOT NULL,
    result LONGBLOB NULL,
    history MEDIUMBLOB NULL,
    PRIMARY KEY (seq),
    KEY expired (handler, state, kept, finished_at, seq)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- A row for each ordering key that has open messages. A transaction that adds or removes one of
-- them changes this row first, which locks it (and makes such changes conflict across the nodes of a cluster).
-- Head: the one message of the key that is pending and claimable, leased, or dead and blocking.
CREATE TABLE IF NOT EXISTS {ordering} (
    handler VARBINARY(128) NOT NULL,
    ordering_key VARBINARY(255) NOT NULL,
    head BIGINT NOT NULL,
    changes BIGINT NOT NULL,
    PRIMARY KEY (handler, ordering_key)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- The open messages of each ordering key: pending, leased, or dead and blocking.
CREATE TABLE IF NOT EXISTS {open} (
    handler VARBINARY(128) NOT NULL,
    ordering_key VARBINARY(255) NOT NULL,
    seq BIGINT NOT NULL,
    PRIMARY KEY (handler, ordering_key, seq)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- The messages that were leased in a run of several of one ordering key, as long as they are. The earliest
-- of a key is in queue 1 of the work, the others in queue 3.
CREATE TABLE IF NOT EXISTS {run} (
    handler VARBINARY(128) NOT NULL,
    ordering_key VARBINARY(255) NOT NULL,
    seq BIGINT NOT NULL,
    PRIMARY KEY (handler, ordering_key, seq)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- How many messages stand where: the sum of its rows. Each operation adds rows and none changes
-- one, so that no two operations wait for each other; now and then the rows are summed up.
-- Backlog: pending and leased.
CREATE TABLE IF NOT EXISTS {tally} (
    n BIGINT NOT NULL AUTO_INCREMENT,
    handler VARBINARY(128) NOT NULL,
    backlog BIGINT NOT NULL,
    processed BIGINT NOT NULL,
    dead BIGINT NOT NULL,
    discarded BIGINT NOT NULL,
    PRIMARY KEY (n)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- The handlers of which nothing is claimed.
CREATE TABLE IF NOT EXISTS {paused} (
    handler VARBINARY(128) NOT NULL,
    paused_at BIGINT NOT NULL,
    PRIMARY KEY (handler)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Marks the tables as an inbox's. Its row is written last. Works from: the oldest version whose builds work
-- with these tables.
CREATE TABLE IF NOT EXISTS {meta} (
    only_row TINYINT NOT NULL,
    marker VARBINARY(32) NOT NULL,
    version BIGINT NOT NULL,
    works_from BIGINT NOT NULL,
    PRIMARY KEY (only_row)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

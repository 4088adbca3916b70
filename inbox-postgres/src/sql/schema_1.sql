-- What was received. A row is written once and, but for dropped payloads and edits, never
-- changed; its fingerprint never.
CREATE TABLE {inbox}_message (
    seq bigint PRIMARY KEY,
    accepted_at timestamptz NOT NULL,
    fingerprint bigint NOT NULL,
    handler text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    content_type text COLLATE "C",
    ordering_key text COLLATE "C",
    headers json NOT NULL,
    payload {payload}
)
-- {if partitioned}
PARTITION BY RANGE (seq)
-- {end}
;

-- {if partitioned}
-- What makes a message a duplicate, whichever partition the first copy is in.
CREATE TABLE {inbox}_key (
    handler text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    fingerprint bigint NOT NULL,
    PRIMARY KEY (id, handler)
);
-- {else}
-- By id first, which tells most keys apart: a comparison of handlers finds them equal.
CREATE UNIQUE INDEX {prefix}_key ON {inbox}_message (id, handler);
-- {end}

-- Numbers for messages in order of acceptance: each batch takes blocks of a thousand.
CREATE SEQUENCE {inbox}_seq AS bigint INCREMENT BY 1000 MINVALUE 1000 START WITH 1000;

-- The messages that are not finished, and dead letters. States: 0 pending, 1 leased, 3 dead.
CREATE TABLE {inbox}_work (
    seq bigint PRIMARY KEY,
    -- When a claim may take it: its due time, or the end of its lease.
    visible_at timestamptz NOT NULL,
    due_at timestamptz NOT NULL,
    -- When its last attempt was leased.
    leased_at timestamptz,
    finished_at timestamptz,
    token bigint NOT NULL,
    started integer NOT NULL,
    finished integer NOT NULL,
    replays integer NOT NULL,
    state smallint NOT NULL,
    -- Its turn has come: no other message of its ordering key is before it. Of a run that is leased, the
    -- first only.
    claimable boolean NOT NULL,
    -- Became claimable after it was due, or after its lease had run out: released, or next of its
    -- ordering key. Others become claimable no later than that, which is what `claim_cursor.sql` rests on.
    late boolean NOT NULL DEFAULT false,
    -- Leased behind others of its run, and the attempt is not counted yet. The first of a run is so if its
    -- turn came when its lease had run out.
    behind boolean NOT NULL DEFAULT false,
    -- Dead, and later messages of its ordering key wait for an operator.
    blocks boolean NOT NULL,
    -- False: dead, and its payload was dropped since.
    content boolean NOT NULL DEFAULT true,
    handler text COLLATE "C" NOT NULL,
    ordering_key text COLLATE "C",
    worker text COLLATE "C",
    last_error text COLLATE "C",
    -- What became of earlier attempts, as `settle.sql` writes it.
    history jsonb
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0);

-- What a claim reads, and where leases that have run out are found.
CREATE INDEX {prefix}_claim ON {inbox}_work (handler, state, visible_at, seq)
    WHERE claimable AND NOT late;
CREATE INDEX {prefix}_late ON {inbox}_work (handler, visible_at, seq) WHERE late;

-- The unfinished messages of each ordering key, the earliest first.
CREATE INDEX {prefix}_open ON {inbox}_work (handler, ordering_key, seq)
    WHERE ordering_key IS NOT NULL AND (state < 2 OR blocks);

-- At most one message of an ordering key can be claimed at any time.
CREATE UNIQUE INDEX {prefix}_head ON {inbox}_work (handler, ordering_key)
    WHERE ordering_key IS NOT NULL AND claimable;

-- Dead letters in order of acceptance, however long the backlog.
CREATE INDEX {prefix}_dead ON {inbox}_work (seq) WHERE state = 3;
CREATE INDEX {prefix}_perished ON {inbox}_work (handler, content, finished_at, seq)
    WHERE state = 3;

-- What there is little of, to be counted or found by itself: dead letters that hold up their ordering
-- key, and what is leased behind others of its run.
CREATE INDEX {prefix}_special ON {inbox}_work (handler, behind, ordering_key, seq)
    WHERE blocks OR behind;

-- The messages that are finished. States: 2 processed, 4 discarded.
CREATE TABLE {inbox}_done (
    seq bigint PRIMARY KEY,
    due_at timestamptz NOT NULL,
    leased_at timestamptz,
    finished_at timestamptz NOT NULL,
    token bigint NOT NULL,
    started integer NOT NULL,
    finished integer NOT NULL,
    replays integer NOT NULL,
    state smallint NOT NULL,
    -- Whether there is a payload or a result, which could be dropped.
    content boolean NOT NULL,
    handler text COLLATE "C" NOT NULL,
    worker text COLLATE "C",
    last_error text COLLATE "C",
    result bytea,
    history jsonb
)
-- {if partitioned}
PARTITION BY RANGE (seq)
-- {end}
;

-- Retention: of each handler the longest finished first. With and without content apart, so that
-- dropping payloads does not step over what it has dropped before. Those of one settlement have the
-- same time, and no order among each other: without their numbers they share an entry.
CREATE INDEX {prefix}_expired ON {inbox}_done (handler, state, content, finished_at);
CREATE INDEX {prefix}_discarded ON {inbox}_done (seq) WHERE state = 4;

-- A row for each ordering key that has unfinished messages. What adds or removes one of them
-- locks it first.
CREATE TABLE {inbox}_ordering (
    handler text COLLATE "C" NOT NULL,
    ordering_key text COLLATE "C" NOT NULL,
    changes bigint NOT NULL,
    PRIMARY KEY (handler, ordering_key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000);

-- How many messages stand where: the sum of its rows. Each operation adds rows and none changes
-- one, so that no two operations wait for each other; now and then the rows are summed up.
CREATE TABLE {inbox}_tally (
    handler text COLLATE "C" NOT NULL,
    pending bigint NOT NULL DEFAULT 0,
    leased bigint NOT NULL DEFAULT 0,
    processed bigint NOT NULL DEFAULT 0,
    dead bigint NOT NULL DEFAULT 0,
    discarded bigint NOT NULL DEFAULT 0
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- The handlers of which claims take nothing.
CREATE TABLE {inbox}_paused (
    handler text COLLATE "C" PRIMARY KEY
);

CREATE TABLE {inbox}_meta (
    singleton boolean PRIMARY KEY CHECK (singleton),
    marker text NOT NULL,
    -- Of the tables, and of the functions as they are called.
    version integer NOT NULL,
    -- Builds for this version and later ones work with these tables.
    works_from integer NOT NULL,
    -- Counts changes within the functions.
    revision integer NOT NULL,
    -- The functions' names, and digests of their texts.
    functions jsonb NOT NULL
);
-- {if partitioned}

-- Partition n holds the messages with numbers from n * {width} on. The one that the sequence
-- stands in is the current one.
CREATE TABLE {inbox}_partition (
    number bigint PRIMARY KEY,
    -- NULL: made ahead.
    begins_at timestamptz,
    -- The state that all of its messages were in when it was taken out of its table. Their keys
    -- are still there, but for those up to the number in `forgotten`.
    dropped_state smallint,
    forgotten bigint NOT NULL
);

INSERT INTO {inbox}_partition (number, begins_at, forgotten)
VALUES (0, pg_catalog.clock_timestamp(), 0), (1, NULL, 0);

CREATE TABLE {inbox}_message_0 PARTITION OF {inbox}_message
    FOR VALUES FROM (0) TO ({width});
CREATE TABLE {inbox}_message_1 PARTITION OF {inbox}_message
    FOR VALUES FROM ({width}) TO (2 * {width});
CREATE TABLE {inbox}_done_0 PARTITION OF {inbox}_done
    FOR VALUES FROM (0) TO ({width});
CREATE TABLE {inbox}_done_1 PARTITION OF {inbox}_done
    FOR VALUES FROM ({width}) TO (2 * {width});
-- {end}

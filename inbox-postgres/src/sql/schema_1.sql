-- What was received. A row is written once and, but for dropped and edited payloads, never
-- changed.
CREATE TABLE {message} (
    seq bigint PRIMARY KEY,
    accepted_at timestamptz NOT NULL,
    handler text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    content_type text COLLATE "C",
    ordering_key text COLLATE "C",
    headers json NOT NULL,
    payload {payload}
){by_range};

{keys_1}
-- Numbers for messages in order of acceptance: each batch takes blocks of a thousand.
CREATE SEQUENCE {sequence} AS bigint INCREMENT BY 1000 MINVALUE 1000 START WITH 1000;

-- The messages that are not finished, and dead letters. States: 0 pending, 1 leased, 3 dead.
CREATE TABLE {work} (
    seq bigint PRIMARY KEY,
    -- When a claim may take it: its due time, or the end of its lease.
    visible_at timestamptz NOT NULL,
    due_at timestamptz NOT NULL,
    finished_at timestamptz,
    token bigint NOT NULL,
    started integer NOT NULL,
    finished integer NOT NULL,
    replays integer NOT NULL,
    state smallint NOT NULL,
    -- Not held up by an earlier message of its ordering key; true for leased ones.
    claimable boolean NOT NULL,
    -- Pending, and became claimable after it was due: released, or next of its ordering key. Others
    -- become claimable no later than they are due, which is what `front.sql` rests on.
    late boolean NOT NULL DEFAULT false,
    -- Dead, and later messages of its ordering key wait for an operator.
    blocks boolean NOT NULL,
    handler text COLLATE "C" NOT NULL,
    ordering_key text COLLATE "C",
    worker text COLLATE "C",
    last_error text COLLATE "C"
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0);

-- What a claim reads, and where leases that have run out are found.
CREATE INDEX "{prefix}_claim" ON {work} (handler, state, visible_at, seq)
    WHERE claimable AND NOT late;
CREATE INDEX "{prefix}_late" ON {work} (handler, visible_at, seq) WHERE late;

-- The unfinished messages of each ordering key, the earliest first.
CREATE INDEX "{prefix}_open" ON {work} (handler, ordering_key, seq)
    WHERE ordering_key IS NOT NULL AND (state < 2 OR blocks);

-- At most one message of an ordering key can be claimed or leased at any time.
CREATE UNIQUE INDEX "{prefix}_head" ON {work} (handler, ordering_key)
    WHERE ordering_key IS NOT NULL AND claimable;

-- Dead letters in order of acceptance, whatever the backlog beside them.
CREATE INDEX "{prefix}_dead" ON {work} (seq) WHERE state = 3;
CREATE INDEX "{prefix}_perished" ON {work} (finished_at, seq) WHERE state = 3;

-- Dead letters that hold up their ordering key, to be counted by themselves.
CREATE INDEX "{prefix}_blocking" ON {work} (handler) WHERE blocks;

-- The messages that are finished. States: 2 processed, 4 discarded.
CREATE TABLE {done} (
    seq bigint PRIMARY KEY,
    due_at timestamptz NOT NULL,
    finished_at timestamptz NOT NULL,
    token bigint NOT NULL,
    started integer NOT NULL,
    finished integer NOT NULL,
    replays integer NOT NULL,
    state smallint NOT NULL,
    worker text COLLATE "C",
    last_error text COLLATE "C",
    result bytea
){by_range};

-- Retention: the longest finished first.
CREATE INDEX "{prefix}_expired" ON {done} (state, finished_at, seq);
CREATE INDEX "{prefix}_discarded" ON {done} (seq) WHERE state = 4;

-- A row for each ordering key that has unfinished messages. Whoever adds or removes one of them
-- locks it first.
CREATE TABLE {ordering} (
    handler text COLLATE "C" NOT NULL,
    ordering_key text COLLATE "C" NOT NULL,
    changes bigint NOT NULL,
    PRIMARY KEY (handler, ordering_key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000);

-- How many messages stand where: the sum of its rows. Each operation adds rows and none changes
-- one, so that no two operations wait for each other; now and then the rows are summed up.
CREATE TABLE {tally} (
    handler text COLLATE "C" NOT NULL,
    pending bigint NOT NULL DEFAULT 0,
    leased bigint NOT NULL DEFAULT 0,
    processed bigint NOT NULL DEFAULT 0,
    dead bigint NOT NULL DEFAULT 0,
    discarded bigint NOT NULL DEFAULT 0
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE TABLE {meta} (
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
{partitions_1}
CREATE SEQUENCE message_seq;

CREATE TABLE message (
    seq bigint NOT NULL DEFAULT nextval('message_seq'),
    accepted_at timestamptz NOT NULL,
    handler text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    headers json NOT NULL,
    payload bytea NOT NULL
);

CREATE TABLE work (
    seq bigint NOT NULL,
    visible_at timestamptz NOT NULL,
    due_at timestamptz NOT NULL,
    token bigint NOT NULL DEFAULT 0,
    started integer NOT NULL DEFAULT 0,
    finished integer NOT NULL DEFAULT 0,
    state smallint NOT NULL DEFAULT 0,
    claimable boolean NOT NULL DEFAULT true,
    handler text COLLATE "C" NOT NULL,
    worker text COLLATE "C"
);

CREATE TABLE done (
    seq bigint NOT NULL,
    due_at timestamptz NOT NULL,
    finished_at timestamptz NOT NULL,
    token bigint NOT NULL,
    started integer NOT NULL,
    finished integer NOT NULL,
    state smallint NOT NULL,
    worker text COLLATE "C",
    result bytea
);
ALTER TABLE message ADD PRIMARY KEY (seq);
CREATE UNIQUE INDEX message_key ON message (handler, id);

ALTER TABLE work ADD PRIMARY KEY (seq);
CREATE INDEX work_claim ON work (handler, state, visible_at, seq) WHERE claimable;

ALTER TABLE done ADD PRIMARY KEY (seq);
CREATE INDEX done_final ON done (state, finished_at, seq);

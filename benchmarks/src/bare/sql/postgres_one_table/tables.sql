CREATE SEQUENCE message_seq;

CREATE TABLE message (
    seq bigint NOT NULL DEFAULT nextval('message_seq'),
    accepted_at timestamptz NOT NULL,
    visible_at timestamptz NOT NULL,
    due_at timestamptz NOT NULL,
    finished_at timestamptz,
    token bigint NOT NULL DEFAULT 0,
    started integer NOT NULL DEFAULT 0,
    finished integer NOT NULL DEFAULT 0,
    state smallint NOT NULL DEFAULT 0,
    claimable boolean NOT NULL DEFAULT true,
    handler text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    worker text COLLATE "C",
    headers json NOT NULL,
    result bytea,
    payload bytea NOT NULL
);
ALTER TABLE message ADD PRIMARY KEY (seq);
CREATE UNIQUE INDEX message_key ON message (handler, id);
CREATE INDEX message_claim ON message (handler, state, visible_at, seq) WHERE claimable;
CREATE INDEX message_final ON message (state, finished_at, seq) WHERE state >= 2;

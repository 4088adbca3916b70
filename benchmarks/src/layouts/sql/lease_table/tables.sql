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

CREATE TABLE pending (
    seq bigint NOT NULL,
    visible_at timestamptz NOT NULL,
    due_at timestamptz NOT NULL,
    token bigint NOT NULL DEFAULT 0,
    started integer NOT NULL DEFAULT 0,
    finished integer NOT NULL DEFAULT 0,
    handler text COLLATE "C" NOT NULL
);

-- A claim moves a row here from `pending`.
CREATE TABLE lease (
    seq bigint NOT NULL,
    lease_until timestamptz NOT NULL,
    due_at timestamptz NOT NULL,
    token bigint NOT NULL,
    started integer NOT NULL,
    finished integer NOT NULL,
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

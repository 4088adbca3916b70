-- What makes a message a duplicate, whichever partition the first copy is in.
CREATE TABLE {key} (
    handler text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    PRIMARY KEY (handler, id)
);

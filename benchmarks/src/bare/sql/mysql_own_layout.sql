CREATE TABLE message (
    seq BIGINT AUTO_INCREMENT PRIMARY KEY,
    handler VARBINARY(128) NOT NULL,
    id VARBINARY(255) NOT NULL,
    kind VARBINARY(255) NOT NULL,
    headers BLOB NOT NULL,
    accepted_at DATETIME(6) NOT NULL,
    payload LONGBLOB NOT NULL,
    UNIQUE KEY message_key (handler, id)
) ENGINE=InnoDB;
CREATE TABLE work (
    seq BIGINT PRIMARY KEY,
    handler VARBINARY(128) NOT NULL,
    state TINYINT NOT NULL,
    visible_at DATETIME(6) NOT NULL,
    attempts INT NOT NULL,
    token BIGINT NOT NULL,
    KEY claim (handler, state, visible_at, seq)
) ENGINE=InnoDB;
CREATE TABLE done (
    seq BIGINT PRIMARY KEY,
    handler VARBINARY(128) NOT NULL,
    attempts INT NOT NULL,
    token BIGINT NOT NULL,
    finished_at DATETIME(6) NOT NULL,
    KEY expired (finished_at, seq)
) ENGINE=InnoDB

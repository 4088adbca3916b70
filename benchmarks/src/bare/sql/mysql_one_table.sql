CREATE TABLE bare (
    seq BIGINT AUTO_INCREMENT PRIMARY KEY,
    handler VARBINARY(128) NOT NULL,
    id VARBINARY(255) NOT NULL,
    kind VARBINARY(255) NOT NULL,
    headers BLOB NOT NULL,
    payload LONGBLOB NOT NULL,
    state TINYINT NOT NULL DEFAULT 0,
    visible_at DATETIME(6) NOT NULL,
    attempts INT NOT NULL DEFAULT 0,
    token BIGINT NOT NULL DEFAULT 0,
    UNIQUE KEY message_key (handler, id),
    KEY claim (handler, state, visible_at)
) ENGINE=InnoDB

-- No unique constraint on purpose: a second effect shall be seen, not prevented.
CREATE TABLE {effect} (
    effect     BIGINT AUTO_INCREMENT PRIMARY KEY,
    message_id VARBINARY(255) NOT NULL
) ENGINE=InnoDB

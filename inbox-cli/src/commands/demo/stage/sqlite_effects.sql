-- No unique constraint on purpose: a second effect shall be seen, not prevented.
CREATE TABLE demo_effect (
    effect     INTEGER PRIMARY KEY,
    message_id TEXT NOT NULL
) STRICT;

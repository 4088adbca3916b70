
-- Partition n holds the messages with numbers from n * {width} on. The one that the sequence
-- stands in is the current one.
CREATE TABLE {partition} (
    number bigint PRIMARY KEY,
    -- NULL: made ahead.
    begins_at timestamptz,
    -- The state that all of its messages were in when it was taken out of its table. Their keys
    -- are still there, but for those up to the number in `forgotten`.
    dropped_state smallint,
    forgotten bigint NOT NULL
);

INSERT INTO {partition} (number, begins_at, forgotten)
VALUES (0, pg_catalog.clock_timestamp(), 0), (1, NULL, 0);

CREATE TABLE {schema}."{prefix}_message_0" PARTITION OF {message}
    FOR VALUES FROM (0) TO ({width});
CREATE TABLE {schema}."{prefix}_message_1" PARTITION OF {message}
    FOR VALUES FROM ({width}) TO (2 * {width});
CREATE TABLE {schema}."{prefix}_done_0" PARTITION OF {done}
    FOR VALUES FROM (0) TO ({width});
CREATE TABLE {schema}."{prefix}_done_1" PARTITION OF {done}
    FOR VALUES FROM ({width}) TO (2 * {width});

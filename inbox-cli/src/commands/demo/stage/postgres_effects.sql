-- No unique constraint on purpose: a second effect shall be seen, not prevented.
CREATE TABLE {schema}.demo_effect (
    effect     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    message_id text NOT NULL
)

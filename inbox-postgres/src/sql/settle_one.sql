-- Ends the lease of one processed message without an ordering key, as inline use and transactional
-- handlers do. Answers as `settle.sql` does, which has the word on a lease that does not stand.
--
-- It does without most settings of the other functions, which cost a single message time. The one here
-- keeps to the index, whatever the table looked like when the plan was made.
CREATE OR REPLACE FUNCTION {inbox}_settle_one(
    one_seq bigint, one_token bigint, one_result bytea, drop_payload boolean, wake boolean,
    alone boolean,
    OUT applied bigint[], OUT repeated bigint[]
)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    -- Before the time: see `claim_cursor.sql`.
    number xid8 := pg_current_xact_id();
    instant timestamptz := {inbox}_now();
    one record;
BEGIN
    IF alone THEN
        {require_read_committed}
    END IF;
    DELETE FROM {inbox}_work AS w
    WHERE w.seq = one_seq AND w.token = one_token AND w.state = 1 AND w.ordering_key IS NULL
    RETURNING w.handler, w.due_at, w.leased_at, w.started, w.finished, w.replays, w.worker,
        w.last_error, w.history
    INTO one;
    IF NOT FOUND THEN
        SELECT s.applied, s.repeated INTO applied, repeated
        FROM {inbox}_settle(
            ARRAY[one_seq], ARRAY[one_token], ARRAY[2]::smallint[], NULL, NULL, NULL, NULL,
            ARRAY[one_result], true, drop_payload, wake, alone, NULL
        ) AS s;
        RETURN;
    END IF;
    INSERT INTO {inbox}_done (
        seq, due_at, leased_at, finished_at, token, started, finished, replays, state, content,
        handler, worker, last_error, result, history
    )
    VALUES (
        one_seq, one.due_at, one.leased_at, instant, one_token, one.started, one.finished + 1,
        one.replays, 2, NOT drop_payload OR one_result IS NOT NULL, one.handler, one.worker,
        one.last_error, one_result, one.history
    );
    INSERT INTO {inbox}_tally (handler, leased, processed) VALUES (one.handler, -1, 1);
    IF drop_payload THEN
        UPDATE {inbox}_message SET payload = NULL WHERE seq = one_seq;
    END IF;
    {compact_counters_sometimes}
    applied := '{1}';
END
$$;

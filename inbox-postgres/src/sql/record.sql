-- Records a message as processed within the caller's transaction, unless its key was handled or
-- is being handled. Answers: 'recorded', 'processed', 'busy', 'blocked', 'dead', 'discarded'.
CREATE OR REPLACE FUNCTION {inbox}_record(
    new_handler text, new_id text, new_kind text, new_content_type text, new_ordering_key text,
    new_headers text, new_payload {payload}, new_due_at timestamptz, delay bigint,
    new_fingerprint bigint, new_result bytea, drop_payload boolean, wake boolean,
    OUT answer text, OUT until timestamptz, OUT reason text, OUT kept_result bytea
)
{function_settings}
AS $$
DECLARE
    -- Before the time: see `claim_cursor.sql`.
    number xid8 := pg_current_xact_id();
    instant timestamptz := {inbox}_now();
    due timestamptz := greatest(
        instant, coalesce(new_due_at, instant + delay * interval '1 microsecond')
    );
    stamp bigint := (extract(epoch FROM instant) * 1000000)::bigint;
    found_seq bigint;
    head boolean := true;
    stored_key text;
    standing record;
BEGIN
    -- {if partitioned}
    -- Before a number is drawn, so that its partition cannot be dropped before its row is there.
    LOCK TABLE ONLY {inbox}_message IN ROW EXCLUSIVE MODE;
    -- {end}
    FOR attempt IN 1 .. 100 LOOP
        -- {if partitioned}
        INSERT INTO {keys} (handler, id, seq, fingerprint)
        VALUES (new_handler, new_id, nextval('{inbox}_seq'), new_fingerprint)
        ON CONFLICT (handler, id) DO NOTHING
        RETURNING seq INTO found_seq;
        IF found_seq IS NOT NULL THEN
            INSERT INTO {inbox}_message (
                seq, accepted_at, fingerprint, handler, id, kind, content_type, ordering_key, headers,
                payload
            )
            VALUES (
                found_seq, instant, new_fingerprint, new_handler, new_id, new_kind, new_content_type,
                new_ordering_key, new_headers::json, new_payload
            );
        END IF;
        -- {else}
        INSERT INTO {inbox}_message (
            seq, accepted_at, fingerprint, handler, id, kind, content_type, ordering_key, headers,
            payload
        )
        VALUES (
            nextval('{inbox}_seq'), instant, new_fingerprint, new_handler, new_id, new_kind,
            new_content_type,
            new_ordering_key, new_headers::json, new_payload
        )
        ON CONFLICT (handler, id) DO NOTHING
        RETURNING seq INTO found_seq;
        -- {end}
        IF found_seq IS NOT NULL THEN
            IF new_ordering_key IS NOT NULL THEN
                SELECT k.fresh INTO head
                FROM {inbox}_lock_keys(ARRAY[new_handler], ARRAY[new_ordering_key]) AS k;
            END IF;
            IF head AND due <= instant THEN
                answer := 'recorded';
                INSERT INTO {inbox}_done (
                    seq, due_at, finished_at, token, started, finished, replays, state, content,
                    handler, result
                )
                VALUES (
                    found_seq, due, instant, stamp, 1, 1, 0, 2,
                    NOT drop_payload OR new_result IS NOT NULL, new_handler, new_result
                );
                INSERT INTO {inbox}_tally (handler, processed) VALUES (new_handler, 1);
                {compact_counters_sometimes}
                IF drop_payload THEN
                    UPDATE {inbox}_message SET payload = NULL WHERE seq = found_seq;
                END IF;
            ELSE
                INSERT INTO {inbox}_work (
                    seq, visible_at, due_at, token, started, finished, replays, state, claimable,
                    blocks, handler, ordering_key
                )
                VALUES (
                    found_seq, due, due, 0, 0, 0, 0, 0, head, false, new_handler,
                    new_ordering_key
                );
                INSERT INTO {inbox}_tally (handler, pending) VALUES (new_handler, 1);
                IF due > instant THEN
                    answer := 'busy';
                    until := due;
                ELSE
                    answer := 'blocked';
                END IF;
            END IF;
            IF new_ordering_key IS NOT NULL THEN
                PERFORM {inbox}_promote_key_heads(ARRAY[new_handler], ARRAY[new_ordering_key]);
            END IF;
            RETURN;
        END IF;

        SELECT m.seq INTO found_seq FROM {keys} AS m
        WHERE m.handler = new_handler AND m.id = new_id;
        CONTINUE WHEN found_seq IS NULL;

        -- Without a lock, which would last as long as the caller's transaction: who holds the
        -- message must not have to wait for it.
        SELECT w.state, w.visible_at, w.claimable, w.last_error INTO standing
        FROM {inbox}_work AS w WHERE w.seq = found_seq;
        IF standing.state = 3 THEN
            answer := 'dead';
            reason := standing.last_error;
        ELSIF standing.visible_at > {inbox}_now() THEN
            answer := 'busy';
            until := standing.visible_at;
        ELSIF NOT standing.claimable THEN
            answer := 'blocked';
        END IF;
        IF answer IS NOT NULL THEN
            {rest_on_others}
            RETURN;
        END IF;

        -- Its ordering key before its work row, as everywhere.
        SELECT m.ordering_key INTO stored_key
        FROM {inbox}_work AS w
        JOIN {inbox}_message AS m ON m.seq = w.seq
        WHERE w.seq = found_seq;
        IF stored_key IS NOT NULL THEN
            PERFORM {inbox}_lock_keys(ARRAY[new_handler], ARRAY[stored_key]);
        END IF;
        SELECT * INTO standing FROM {inbox}_work AS w WHERE w.seq = found_seq FOR UPDATE;
        IF FOUND THEN
            instant := {inbox}_now();
            IF standing.state = 3 THEN
                answer := 'dead';
                reason := standing.last_error;
            ELSIF standing.visible_at > instant THEN
                answer := 'busy';
                until := standing.visible_at;
            ELSIF NOT standing.claimable THEN
                answer := 'blocked';
            ELSE
                answer := 'recorded';
                -- A new token, so that a worker whose lease ran out is told so when it settles.
                stamp := (extract(epoch FROM instant) * 1000000)::bigint;
                DELETE FROM {inbox}_work WHERE seq = found_seq;
                INSERT INTO {inbox}_done (
                    seq, due_at, leased_at, finished_at, token, started, finished, replays, state,
                    content, handler, worker, last_error, result, history
                )
                VALUES (
                    found_seq, standing.due_at, standing.leased_at, instant,
                    greatest(standing.token + 1, stamp), standing.started + 1,
                    standing.finished + 1, standing.replays, 2,
                    NOT drop_payload OR new_result IS NOT NULL, new_handler, standing.worker,
                    standing.last_error, new_result, standing.history
                );
                INSERT INTO {inbox}_tally (handler, pending, leased, processed)
                VALUES (
                    new_handler, -(standing.state = 0)::integer, -(standing.state = 1)::integer, 1
                );
                {compact_counters_sometimes}
                IF drop_payload THEN
                    UPDATE {inbox}_message SET payload = NULL WHERE seq = found_seq;
                END IF;
            END IF;
        END IF;
        IF stored_key IS NOT NULL
            AND {inbox}_promote_key_heads(ARRAY[new_handler], ARRAY[stored_key]) > 0 AND wake
        THEN
            PERFORM pg_notify('{channel}', '');
        END IF;
        IF answer IS NOT NULL THEN
            {rest_on_others}
            RETURN;
        END IF;

        SELECT * INTO standing FROM {inbox}_done AS d WHERE d.seq = found_seq;
        IF FOUND THEN
            IF standing.state = 2 THEN
                answer := 'processed';
                kept_result := standing.result;
            ELSE
                answer := 'discarded';
            END IF;
            {rest_on_others}
            RETURN;
        END IF;
        -- {if partitioned}
        -- Its partition was dropped, and only the key is still there: not known any more.
        WITH gone AS (
            DELETE FROM {keys} AS k
            USING {inbox}_partition AS p
            WHERE k.handler = new_handler AND k.id = new_id AND k.seq = found_seq
              AND p.number = found_seq / {width} AND p.dropped_state IS NOT NULL
            RETURNING p.dropped_state
        )
        INSERT INTO {inbox}_tally (handler, processed, discarded)
        SELECT new_handler, -(dropped_state = 2)::integer, -(dropped_state = 4)::integer
        FROM gone;
        -- {end}
    END LOOP;
    RAISE EXCEPTION 'the message changed too often' USING ERRCODE = 'serialization_failure';
END
$$;

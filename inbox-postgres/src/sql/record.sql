-- Records a message as processed within the caller's transaction, unless its key was handled or
-- is being handled. Answers: 'recorded', 'processed', 'busy', 'blocked', 'dead', 'discarded'.
CREATE OR REPLACE FUNCTION {fn:record}(
    new_handler text, new_id text, new_kind text, new_content_type text, new_ordering_key text,
    new_headers text, new_payload {payload}, new_due_at timestamptz, delay bigint,
    new_result bytea, drop_payload boolean, wake boolean,
    OUT answer text, OUT until timestamptz, OUT reason text, OUT kept_result bytea
)
{pinned}
AS $$
DECLARE
    -- Before the time: see `front.sql`.
    number xid8 := pg_current_xact_id();
    instant timestamptz := {fn:now}();
    due timestamptz := greatest(
        instant, coalesce(new_due_at, instant + delay * interval '1 microsecond')
    );
    stamp bigint := (extract(epoch FROM instant) * 1000000)::bigint;
    found_seq bigint;
    head boolean := true;
    stored_key text;
    standing record;
BEGIN
    {keep_partition}
    FOR attempt IN 1 .. 100 LOOP
        {store_one}
        IF found_seq IS NOT NULL THEN
            IF new_ordering_key IS NOT NULL THEN
                SELECT k.fresh INTO head
                FROM {fn:lock_keys}(ARRAY[new_handler], ARRAY[new_ordering_key]) AS k;
            END IF;
            IF head AND due <= instant THEN
                answer := 'recorded';
                INSERT INTO {done} (
                    seq, due_at, finished_at, token, started, finished, replays, state, result
                )
                VALUES (found_seq, due, instant, stamp, 1, 1, 0, 2, new_result);
                INSERT INTO {tally} (handler, processed) VALUES (new_handler, 1);
                {fold_sometimes}
                IF drop_payload THEN
                    UPDATE {message} SET payload = NULL WHERE seq = found_seq;
                END IF;
            ELSE
                INSERT INTO {work} (
                    seq, visible_at, due_at, token, started, finished, replays, state, claimable,
                    blocks, handler, ordering_key
                )
                VALUES (
                    found_seq, due, due, 0, 0, 0, 0, 0, head, false, new_handler,
                    new_ordering_key
                );
                INSERT INTO {tally} (handler, pending) VALUES (new_handler, 1);
                IF due > instant THEN
                    answer := 'busy';
                    until := due;
                ELSE
                    answer := 'blocked';
                END IF;
            END IF;
            IF new_ordering_key IS NOT NULL THEN
                PERFORM {fn:rehead}(ARRAY[new_handler], ARRAY[new_ordering_key]);
            END IF;
            RETURN;
        END IF;

        SELECT m.seq INTO found_seq FROM {keys} AS m
        WHERE m.handler = new_handler AND m.id = new_id;
        CONTINUE WHEN found_seq IS NULL;

        -- Without a lock, which would last as long as the caller's transaction: who holds the
        -- message must not have to wait for it.
        SELECT w.state, w.visible_at, w.claimable, w.last_error INTO standing
        FROM {work} AS w WHERE w.seq = found_seq;
        IF standing.state = 3 THEN
            answer := 'dead';
            reason := standing.last_error;
        ELSIF standing.visible_at > {fn:now}() THEN
            answer := 'busy';
            until := standing.visible_at;
        ELSIF NOT standing.claimable THEN
            answer := 'blocked';
        END IF;
        IF answer IS NOT NULL THEN
            RETURN;
        END IF;

        -- Its ordering key before its work row, as everywhere.
        SELECT m.ordering_key INTO stored_key
        FROM {work} AS w
        JOIN {message} AS m ON m.seq = w.seq
        WHERE w.seq = found_seq;
        IF stored_key IS NOT NULL THEN
            PERFORM {fn:lock_keys}(ARRAY[new_handler], ARRAY[stored_key]);
        END IF;
        SELECT * INTO standing FROM {work} AS w WHERE w.seq = found_seq FOR UPDATE;
        IF FOUND THEN
            instant := {fn:now}();
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
                DELETE FROM {work} WHERE seq = found_seq;
                INSERT INTO {done} (
                    seq, due_at, finished_at, token, started, finished, replays, state, worker,
                    last_error, result
                )
                VALUES (
                    found_seq, standing.due_at, instant, greatest(standing.token + 1, stamp),
                    standing.started + 1, standing.finished + 1, standing.replays, 2,
                    standing.worker, standing.last_error, new_result
                );
                INSERT INTO {tally} (handler, pending, leased, processed)
                VALUES (
                    new_handler, -(standing.state = 0)::integer, -(standing.state = 1)::integer, 1
                );
                {fold_sometimes}
                IF drop_payload THEN
                    UPDATE {message} SET payload = NULL WHERE seq = found_seq;
                END IF;
            END IF;
        END IF;
        IF stored_key IS NOT NULL
            AND {fn:rehead}(ARRAY[new_handler], ARRAY[stored_key]) > 0 AND wake
        THEN
            PERFORM pg_notify('{channel}', '');
        END IF;
        IF answer IS NOT NULL THEN
            RETURN;
        END IF;

        SELECT * INTO standing FROM {done} AS d WHERE d.seq = found_seq;
        IF FOUND THEN
            IF standing.state = 2 THEN
                answer := 'processed';
                kept_result := standing.result;
            ELSE
                answer := 'discarded';
            END IF;
            RETURN;
        END IF;
        {forget_key}
    END LOOP;
    RAISE EXCEPTION 'the message changed too often' USING ERRCODE = 'serialization_failure';
END
$$;

-- Whether the caller may run the handler of this message now; stores the message if its key is
-- not known. Answers: 'new' (not known before, now leased), 'run' (known, now leased),
-- 'processed', 'busy', 'blocked', 'dead', 'discarded'.
CREATE OR REPLACE FUNCTION {fn:begin}(
    new_handler text, new_id text, new_kind text, new_content_type text, new_ordering_key text,
    new_headers text, new_payload {payload}, new_due_at timestamptz, delay bigint,
    lease bigint, holder text,
    OUT answer text, OUT until timestamptz, OUT reason text, OUT kept_result bytea,
    OUT found_seq bigint, OUT new_token bigint, OUT attempts_started integer,
    OUT attempts_finished integer, OUT stored_at timestamptz, OUT stored_kind text,
    OUT stored_content_type text, OUT stored_ordering_key text, OUT stored_headers text,
    OUT stored_payload bytea
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
    lease_end timestamptz := instant + lease * interval '1 microsecond';
    head boolean := true;
    runs boolean;
    standing record;
BEGIN
    {read_committed}
    {keep_partition}
    FOR attempt IN 1 .. 100 LOOP
        {store_one}
        IF found_seq IS NOT NULL THEN
            stored_at := instant;
            IF new_ordering_key IS NOT NULL THEN
                SELECT k.fresh INTO head
                FROM {fn:lock_keys}(ARRAY[new_handler], ARRAY[new_ordering_key]) AS k;
            END IF;
            -- Both may have waited for another transaction. The lease begins now.
            instant := {fn:now}();
            stamp := (extract(epoch FROM instant) * 1000000)::bigint;
            lease_end := instant + lease * interval '1 microsecond';
            runs := head AND due <= instant;
            INSERT INTO {work} (
                seq, visible_at, due_at, token, started, finished, replays, state, claimable,
                blocks, handler, ordering_key, worker
            )
            VALUES (
                found_seq, CASE WHEN runs THEN lease_end ELSE due END, due,
                CASE WHEN runs THEN stamp ELSE 0 END, runs::integer, 0, 0, runs::integer, head,
                false, new_handler, new_ordering_key, CASE WHEN runs THEN holder END
            );
            INSERT INTO {tally} (handler, pending, leased)
            VALUES (new_handler, (NOT runs)::integer, runs::integer);
            IF NOT head THEN
                PERFORM {fn:rehead}(ARRAY[new_handler], ARRAY[new_ordering_key]);
            END IF;
            {fold_sometimes}
            IF runs THEN
                answer := 'new';
                until := lease_end;
                new_token := stamp;
                attempts_started := 1;
                attempts_finished := 0;
            ELSIF due > instant THEN
                answer := 'busy';
                until := due;
            ELSE
                answer := 'blocked';
            END IF;
            RETURN;
        END IF;

        SELECT m.seq INTO found_seq FROM {keys} AS m
        WHERE m.handler = new_handler AND m.id = new_id;
        -- Gone again: purged, or its transaction was rolled back.
        CONTINUE WHEN found_seq IS NULL;

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
                answer := 'run';
                until := instant + lease * interval '1 microsecond';
                stamp := (extract(epoch FROM instant) * 1000000)::bigint;
                UPDATE {work} AS w
                SET state = 1, late = false, visible_at = until, token = greatest(w.token + 1, stamp),
                    started = w.started + 1, worker = holder
                WHERE w.seq = found_seq
                RETURNING w.token, w.started, w.finished
                INTO new_token, attempts_started, attempts_finished;
                IF standing.state = 0 THEN
                    INSERT INTO {tally} (handler, pending, leased) VALUES (new_handler, -1, 1);
                    {fold_sometimes}
                END IF;
                SELECT m.accepted_at, m.kind, m.content_type, m.ordering_key, m.headers::text,
                    {payload_out}
                INTO stored_at, stored_kind, stored_content_type, stored_ordering_key,
                    stored_headers, stored_payload
                FROM {message} AS m
                WHERE m.seq = found_seq;
            END IF;
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
        -- It went from one table to the other in between.
        {forget_key}
    END LOOP;
    RAISE EXCEPTION 'the message changed too often' USING ERRCODE = 'serialization_failure';
END
$$;

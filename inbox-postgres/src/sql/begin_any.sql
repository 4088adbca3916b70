-- What `begin.sql` does for a message that is known, is not due yet or has an ordering key.
CREATE OR REPLACE FUNCTION {inbox}_begin_any(
    new_handler text, new_id text, new_kind text, new_content_type text, new_ordering_key text,
    new_headers text, new_payload {payload}, new_due_at timestamptz, delay bigint,
    new_fingerprint bigint, lease bigint, holder text,
    OUT answer text, OUT until timestamptz, OUT reason text, OUT kept_result bytea,
    OUT found_seq bigint, OUT new_token bigint, OUT attempts_started integer,
    OUT attempts_finished integer, OUT stored_at timestamptz, OUT stored_kind text,
    OUT stored_content_type text, OUT stored_ordering_key text, OUT stored_headers text,
    OUT stored_payload bytea, OUT replayed integer
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
    lease_end timestamptz := instant + lease * interval '1 microsecond';
    head boolean := true;
    runs boolean;
    standing record;
    lost bigint;
BEGIN
    {require_read_committed}
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
            stored_at := instant;
            IF new_ordering_key IS NOT NULL THEN
                SELECT k.fresh INTO head
                FROM {inbox}_lock_keys(ARRAY[new_handler], ARRAY[new_ordering_key]) AS k;
            END IF;
            -- Both may have waited for another transaction. The lease begins now.
            instant := {inbox}_now();
            stamp := (extract(epoch FROM instant) * 1000000)::bigint;
            lease_end := instant + lease * interval '1 microsecond';
            runs := head AND due <= instant;
            INSERT INTO {inbox}_work (
                seq, visible_at, due_at, leased_at, token, started, finished, replays, state,
                claimable, blocks, handler, ordering_key, worker
            )
            VALUES (
                found_seq, CASE WHEN runs THEN lease_end ELSE due END, due,
                CASE WHEN runs THEN instant END, CASE WHEN runs THEN stamp ELSE 0 END,
                runs::integer, 0, 0, runs::integer, head, false, new_handler, new_ordering_key, CASE WHEN runs THEN holder END
            );
            INSERT INTO {inbox}_tally (handler, pending, leased)
            VALUES (new_handler, (NOT runs)::integer, runs::integer);
            IF NOT head THEN
                PERFORM {inbox}_promote_key_heads(ARRAY[new_handler], ARRAY[new_ordering_key]);
            END IF;
            {compact_counters_sometimes}
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

        -- Locked only if it may run: a claim that ends the run it belongs to passes over what is locked.
        SELECT * INTO standing FROM {inbox}_work AS w WHERE w.seq = found_seq;
        instant := {inbox}_now();
        IF standing.state < 3 AND standing.claimable AND standing.visible_at <= instant THEN
            SELECT * INTO standing FROM {inbox}_work AS w WHERE w.seq = found_seq FOR UPDATE;
            instant := {inbox}_now();
        END IF;
        IF standing.seq IS NOT NULL THEN
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
                UPDATE {inbox}_work AS w
                SET state = 1, late = false, behind = false, visible_at = until,
                    token = greatest(w.token + 1, stamp), started = w.started + 1,
                    leased_at = instant, worker = holder
                WHERE w.seq = found_seq
                RETURNING w.token, w.started, w.finished, w.replays
                INTO new_token, attempts_started, attempts_finished, replayed;
                IF standing.state = 1 AND standing.ordering_key IS NOT NULL THEN
                    WITH chosen (seq, handler, ordering_key, state) AS (
                        VALUES (standing.seq, standing.handler, standing.ordering_key, standing.state)
                    ), {end_runs}
                    SELECT count(*) INTO lost FROM behind_chosen;
                END IF;
                IF standing.state = 0 THEN
                    INSERT INTO {inbox}_tally (handler, pending, leased) VALUES (new_handler, -1, 1);
                    {compact_counters_sometimes}
                END IF;
                SELECT m.accepted_at, m.kind, m.content_type, m.ordering_key, m.headers::text,
                    {payload_out}
                INTO stored_at, stored_kind, stored_content_type, stored_ordering_key,
                    stored_headers, stored_payload
                FROM {inbox}_message AS m
                WHERE m.seq = found_seq;
            END IF;
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
        -- It went from one table to the other in between.
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

-- Whether the caller may run the handler of this message now; stores the message if its key is
-- not known. Answers: 'new' (not known before, now leased), 'run' (known, now leased),
-- 'processed', 'busy', 'blocked', 'dead', 'discarded'.
--
-- A new message that waits for nothing is dealt with here, by statements that only insert. Their
-- plans cannot go wrong, so they do without the settings of the other functions, which cost a
-- single message time.
CREATE OR REPLACE FUNCTION {inbox}_begin(
    new_handler text, new_id text, new_kind text, new_content_type text, new_ordering_key text,
    new_headers text, new_payload {payload}, new_due_at timestamptz, delay bigint,
    new_fingerprint bigint, lease bigint, holder text,
    OUT answer text, OUT until timestamptz, OUT reason text, OUT kept_result bytea,
    OUT found_seq bigint, OUT new_token bigint, OUT attempts_started integer,
    OUT attempts_finished integer, OUT stored_at timestamptz, OUT stored_kind text,
    OUT stored_content_type text, OUT stored_ordering_key text, OUT stored_headers text,
    OUT stored_payload bytea, OUT replayed integer
)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- Before the time: see `claim_cursor.sql`.
    number xid8 := pg_current_xact_id();
    instant timestamptz := {inbox}_now();
BEGIN
    {require_read_committed}
    IF new_ordering_key IS NULL AND new_due_at IS NULL AND delay IS NULL THEN
        -- {if partitioned}
        -- Before a number is drawn, so that its partition cannot be dropped before its row is there.
        LOCK TABLE ONLY {inbox}_message IN ROW EXCLUSIVE MODE;
        INSERT INTO {keys} (handler, id, seq, fingerprint)
        VALUES (new_handler, new_id, nextval('{inbox}_seq'), new_fingerprint)
        ON CONFLICT (handler, id) DO NOTHING
        RETURNING seq INTO found_seq;
        IF found_seq IS NOT NULL THEN
            INSERT INTO {inbox}_message (
                seq, accepted_at, fingerprint, handler, id, kind, content_type, headers, payload
            )
            VALUES (
                found_seq, instant, new_fingerprint, new_handler, new_id, new_kind, new_content_type,
                new_headers::json, new_payload
            );
        END IF;
        -- {else}
        INSERT INTO {inbox}_message (
            seq, accepted_at, fingerprint, handler, id, kind, content_type, headers, payload
        )
        VALUES (
            nextval('{inbox}_seq'), instant, new_fingerprint, new_handler, new_id, new_kind,
            new_content_type,
            new_headers::json, new_payload
        )
        ON CONFLICT (handler, id) DO NOTHING
        RETURNING seq INTO found_seq;
        -- {end}
        IF found_seq IS NOT NULL THEN
            answer := 'new';
            stored_at := instant;
            attempts_started := 1;
            attempts_finished := 0;
            -- It may have waited for another transaction. The lease begins now.
            instant := {inbox}_now();
            until := instant + lease * interval '1 microsecond';
            new_token := (extract(epoch FROM instant) * 1000000)::bigint;
            INSERT INTO {inbox}_work (
                seq, visible_at, due_at, leased_at, token, started, finished, replays, state,
                claimable, blocks, handler, worker
            )
            VALUES (
                found_seq, until, stored_at, instant, new_token, 1, 0, 0, 1, true, false,
                new_handler, holder
            );
            INSERT INTO {inbox}_tally (handler, leased) VALUES (new_handler, 1);
            {compact_counters_sometimes}
            RETURN;
        END IF;
    END IF;
    SELECT * INTO answer, until, reason, kept_result, found_seq, new_token, attempts_started,
        attempts_finished, stored_at, stored_kind, stored_content_type, stored_ordering_key,
        stored_headers, stored_payload, replayed
    FROM {inbox}_begin_any(
        new_handler, new_id, new_kind, new_content_type, new_ordering_key, new_headers,
        new_payload, new_due_at, delay, new_fingerprint, lease, holder
    );
END
$$;

-- Makes leases run for `lease` microseconds from now. Returns the places, counted from 1, of those
-- that stood, and the new end. A row that another transaction holds is passed over, since the others
-- must not run out meanwhile: `kept` are the places of those whose lease has not, `kept_until` their
-- ends. The first of what is left of a run may have become that when its lease had run out: now its
-- attempt counts.
--
-- In a run the lease of one whose first has run out is lost, if another transaction holds that one: it may
-- be claiming it, and passes over the rows that are locked here (`end_runs.sql`). So the first is locked
-- here as well.
CREATE OR REPLACE FUNCTION {inbox}_extend(
    seqs bigint[], tokens bigint[], lease bigint,
    OUT extended bigint[], OUT lease_until timestamptz,
    OUT kept bigint[], OUT kept_until timestamptz[]
)
{function_settings}
AS $$
#variable_conflict use_column
DECLARE
    instant timestamptz := {inbox}_now();
    stamp bigint := (extract(epoch FROM instant) * 1000000)::bigint;
BEGIN
    {require_read_committed}
    lease_until := instant + lease * interval '1 microsecond';
    WITH held AS MATERIALIZED (
        SELECT g.place, w.*
        FROM unnest(seqs, tokens) WITH ORDINALITY AS g (seq, token, place)
        CROSS JOIN LATERAL (
            SELECT w.seq, w.handler, w.ordering_key, w.behind AND NOT w.claimable AS follows
            FROM {inbox}_work AS w
            WHERE w.seq = g.seq AND w.token = g.token AND w.state = 1
            FOR UPDATE SKIP LOCKED
        ) AS w
    ), firsts_run_out AS MATERIALIZED (
        SELECT r.handler, r.ordering_key
        FROM (SELECT DISTINCT handler, ordering_key FROM held WHERE follows) AS r
        CROSS JOIN LATERAL (
            SELECT f.seq FROM {inbox}_work AS f
            WHERE f.handler = r.handler AND f.ordering_key = r.ordering_key
              AND f.ordering_key IS NOT NULL AND f.claimable AND f.visible_at <= instant
            FOR UPDATE SKIP LOCKED
        ) AS f
    ), deserted AS MATERIALIZED (
        SELECT h.seq FROM held AS h
        WHERE h.follows AND (
            SELECT count(*) FROM {inbox}_work AS f
            WHERE f.handler = h.handler AND f.ordering_key = h.ordering_key
              AND f.ordering_key IS NOT NULL AND f.claimable AND f.visible_at > instant
        ) = 0
          AND (h.handler, h.ordering_key) NOT IN (SELECT handler, ordering_key FROM firsts_run_out)
    ), leases_lost AS (
        UPDATE {inbox}_work AS w
        SET worker = NULL, visible_at = least(w.visible_at, instant),
            token = greatest(w.token + 1, stamp)
        WHERE w.seq = ANY (ARRAY(SELECT seq FROM deserted))
    ), moved AS (
        UPDATE {inbox}_work
        SET visible_at = lease_until, late = false, behind = behind AND NOT claimable,
            started = started + (behind AND claimable)::integer
        WHERE seq = ANY (ARRAY(SELECT seq FROM held EXCEPT SELECT seq FROM deserted))
    )
    SELECT array_agg(place) INTO extended FROM held
    WHERE seq <> ALL (ARRAY(SELECT seq FROM deserted));

    IF cardinality(extended) IS DISTINCT FROM cardinality(seqs) THEN
        SELECT array_agg(g.place), array_agg(w.visible_at) INTO kept, kept_until
        FROM unnest(seqs, tokens) WITH ORDINALITY AS g (seq, token, place)
        CROSS JOIN LATERAL (
            SELECT w.visible_at FROM {inbox}_work AS w
            WHERE w.seq = g.seq AND w.token = g.token AND w.state = 1
              AND w.visible_at > instant
            OFFSET 0
        ) AS w
        WHERE g.place <> ALL (coalesce(extended, '{}'));
    END IF;
END
$$;

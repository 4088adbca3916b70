-- Makes leases run for `lease` microseconds from now. Returns the places, counted from 1, of those
-- that stood, and the new end. A row that another transaction holds is passed over, since the others
-- must not run out meanwhile: `kept` are the places of those whose lease has not, `kept_until` their
-- ends. The first of what is left of a run may have become that when its lease had run out: now its
-- attempt counts.
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
BEGIN
    {require_read_committed}
    lease_until := instant + lease * interval '1 microsecond';
    WITH held AS MATERIALIZED (
        SELECT g.place, w.seq
        FROM unnest(seqs, tokens) WITH ORDINALITY AS g (seq, token, place)
        CROSS JOIN LATERAL (
            SELECT w.seq FROM {inbox}_work AS w
            WHERE w.seq = g.seq AND w.token = g.token AND w.state = 1
            FOR UPDATE SKIP LOCKED
        ) AS w
    ), moved AS (
        UPDATE {inbox}_work
        SET visible_at = lease_until, late = false, behind = behind AND NOT claimable,
            started = started + (behind AND claimable)::integer
        WHERE seq = ANY (ARRAY(SELECT seq FROM held))
    )
    SELECT array_agg(place) INTO extended FROM held;

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

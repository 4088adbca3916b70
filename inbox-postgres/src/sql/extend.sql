-- Makes leases run for `lease` microseconds from now. Returns the places, counted from 1, of those
-- that stood, and the new end.
CREATE OR REPLACE FUNCTION {fn:extend}(
    seqs bigint[], tokens bigint[], lease bigint,
    OUT extended bigint[], OUT lease_until timestamptz
)
{pinned}
AS $$
#variable_conflict use_column
BEGIN
    lease_until := {fn:now}() + lease * interval '1 microsecond';
    WITH held AS MATERIALIZED (
        SELECT g.place, w.seq
        FROM unnest(seqs, tokens) WITH ORDINALITY AS g (seq, token, place)
        CROSS JOIN LATERAL (
            SELECT w.seq FROM {work} AS w
            WHERE w.seq = g.seq AND w.token = g.token AND w.state = 1
            FOR UPDATE
        ) AS w
    ), moved AS (
        UPDATE {work} SET visible_at = lease_until
        WHERE seq = ANY (ARRAY(SELECT seq FROM held))
    )
    SELECT array_agg(place) INTO extended FROM held;
END
$$;

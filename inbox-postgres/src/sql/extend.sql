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
        SELECT g.place, w.at
        FROM unnest(seqs, tokens) WITH ORDINALITY AS g (seq, token, place)
        CROSS JOIN LATERAL (
            SELECT w.ctid AS at FROM {work} AS w
            WHERE w.seq = g.seq AND w.token = g.token AND w.state = 1
            FOR UPDATE
        ) AS w
    ), moved AS (
        UPDATE {work} AS w SET visible_at = lease_until FROM held AS h WHERE w.ctid = h.at
    )
    SELECT array_agg(place) INTO extended FROM held;
END
$$;

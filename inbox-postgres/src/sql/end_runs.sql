-- Of the runs to which `chosen` belong, by leases that have run out: takes the leases behind those away, and
-- with them their turn. They are leased by nobody until they are claimed. What another transaction holds is
-- left to it.
behind_chosen AS MATERIALIZED (
    SELECT b.seq
    FROM chosen AS c
    CROSS JOIN LATERAL (
        SELECT w.seq FROM {inbox}_work AS w
        WHERE c.state = 1 AND c.ordering_key IS NOT NULL
          AND w.handler = c.handler AND w.behind AND w.ordering_key = c.ordering_key
          AND w.worker IS NOT NULL AND NOT w.claimable AND w.seq > c.seq
          AND w.seq <> ALL (ARRAY(SELECT seq FROM chosen))
        FOR UPDATE SKIP LOCKED
    ) AS b
), leases_lost AS (
    UPDATE {inbox}_work AS w
    SET worker = NULL, visible_at = least(w.visible_at, instant),
        token = greatest(w.token + 1, stamp)
    WHERE w.seq = ANY (ARRAY(SELECT seq FROM behind_chosen))
)

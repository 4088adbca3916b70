-- For people: each message with all that is known about where it stands.
CREATE OR REPLACE VIEW {inbox}_overview AS
SELECT
    -- {if partitioned}
    k.handler, k.id,
    -- {else}
    m.handler, m.id,
    -- {end}
    m.kind,
    CASE
        WHEN w.state = 0 OR (w.state = 1 AND w.visible_at <= {inbox}_now()) THEN 'pending'
        WHEN w.state = 1 THEN 'leased'
        WHEN w.state = 3 THEN 'dead'
        WHEN d.state = 2 THEN 'processed'
        WHEN d.state = 4 THEN 'discarded'
    END AS state,
    coalesce(w.started, d.started) AS attempts_started,
    coalesce(w.finished, d.finished) AS attempts_finished,
    coalesce(w.replays, d.replays) AS replays,
    m.accepted_at,
    coalesce(w.due_at, d.due_at) AS due_at,
    coalesce(w.leased_at, d.leased_at) AS leased_at,
    CASE WHEN w.state = 1 THEN w.visible_at END AS lease_until,
    coalesce(w.worker, d.worker) AS worker,
    coalesce(w.finished_at, d.finished_at) AS finished_at,
    coalesce(w.last_error, d.last_error) AS last_error,
    m.ordering_key,
    w.state < 2 AND NOT w.claimable AND (w.state = 0 OR w.visible_at <= {inbox}_now())
        AS waits_for_ordering_key,
    coalesce(w.blocks, false) AS blocks_ordering_key,
    m.content_type, m.headers, {payload_bytes} AS payload_bytes, m.seq,
    coalesce(w.history, d.history) AS history
FROM
    -- {if partitioned}
    {inbox}_key AS k JOIN
    -- {end}
    {inbox}_message AS m
    -- {if partitioned}
    ON m.seq = k.seq
    -- {end}
LEFT JOIN {inbox}_work AS w ON w.seq = m.seq
LEFT JOIN {inbox}_done AS d ON d.seq = m.seq;

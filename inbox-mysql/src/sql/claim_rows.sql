-- The messages that were leased, with their attempts, be they counted yet or not.
SELECT j.seq, m.handler, m.id, m.kind, m.content_type, m.headers, m.ordering_key, m.accepted_at,
    w.token, {counted}, w.finished, w.replays, m.payload, j.due, j.first,
    j.in_run
FROM {claimed} AS j
STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = j.seq
LEFT JOIN {message} AS m FORCE INDEX (PRIMARY) ON m.seq = j.seq
{all_rows};

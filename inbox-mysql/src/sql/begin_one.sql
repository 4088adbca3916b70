-- Stores a message that a claim would take as soon as it is stored, and leases it, unless its key is known.
-- Answers with its lease then. Times are read behind what may have waited.
INSERT INTO {message} (
    handler, id, kind, content_type, headers, ordering_key, accepted_at, first_due_at,
    batch, fingerprint, payload_bytes, payload
) VALUES (
    {handler}, {id}, {kind}, {content_type}, {headers}, NULL, {time}, {time},
    {batch}, {fingerprint}, {payload_bytes}, {payload}
)
ON DUPLICATE KEY UPDATE seq = IF(
    {message}.handler = VALUES(handler) AND {message}.id = VALUES(id),
    {message}.seq, {message}.seq + 9223372036854775807
);
INSERT INTO {work} (
    seq, handler, ordering_key, queue, visible_at, due_at, leased_at, token, started, finished,
    replays, worker
)
SELECT m.seq, m.handler, NULL, 1, {time} + {length}, m.first_due_at, {time}, {time}, 1, 0, 0,
    {worker}
FROM {message} AS m FORCE INDEX (PRIMARY)
WHERE m.seq = LAST_INSERT_ID() AND m.batch = {batch};
INSERT INTO {tally} (handler, backlog, processed, dead, discarded)
SELECT m.handler, 1, 0, 0, 0 FROM {message} AS m FORCE INDEX (PRIMARY)
WHERE m.seq = LAST_INSERT_ID() AND m.batch = {batch};
SELECT m.seq, w.token, w.visible_at, m.accepted_at
FROM {message} AS m FORCE INDEX (message_key)
STRAIGHT_JOIN {work} AS w FORCE INDEX (PRIMARY) ON w.seq = m.seq
WHERE m.handler = {handler} AND m.id = {id} AND m.batch = {batch};

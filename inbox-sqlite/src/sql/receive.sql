-- ?1 messages as JSON arrays, ?2 all their headers and payloads one after the other, ?3 now. Headers
-- are JSON themselves: within JSON they would be written and read several times over.
-- json_each walks the array in order, which makes the first copy of a key the one that counts
-- and the order of the batch the order of acceptance.
INSERT INTO {inbox}_message (
    handler, id, kind, content_type, headers, ordering_key, fingerprint,
    accepted_at, first_due_at, payload_bytes, payload
)
SELECT
    m.value ->> 0, m.value ->> 1, m.value ->> 2, m.value ->> 3,
    CAST(substr(?2, m.value ->> 4, m.value ->> 5) AS TEXT), m.value ->> 6,
    m.value ->> 10, ?3, m.value ->> 7, m.value ->> 9, substr(?2, m.value ->> 8, m.value ->> 9)
FROM json_each(?1) AS m
WHERE true
-- Changes nothing, and returns the key once more for each copy that differs from what is stored.
ON CONFLICT (handler, id) DO UPDATE SET fingerprint = fingerprint
WHERE fingerprint <> excluded.fingerprint
RETURNING handler, id, seq, fingerprint

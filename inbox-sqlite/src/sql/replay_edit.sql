-- ?1 sequence number, ?2 payload, ?3 headers; NULL leaves the old ones.
UPDATE {inbox}_message
SET payload = coalesce(?2, payload), payload_bytes = length(coalesce(?2, payload)),
    headers = coalesce(?3, headers)
WHERE seq = ?1

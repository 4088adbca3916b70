-- ?1 sequence number, ?2 payload.
UPDATE {inbox}_message SET payload = ?2, payload_bytes = length(?2) WHERE seq = ?1

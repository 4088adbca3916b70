-- What an intervention changes in one slice. Parameters as in list.sql; ?21 whether the payload must
-- still be there.
SELECT s.seq
FROM {inbox}_state AS s CROSS JOIN {inbox}_message AS m ON m.seq = s.seq
WHERE {numbers} AND {filter}
  AND (NOT ?21 OR m.payload_bytes IS NOT NULL)
ORDER BY s.seq
LIMIT ?2

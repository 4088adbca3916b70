-- Parameters as in list.sql, but for the limit.
SELECT count(*)
FROM {inbox}_state AS s CROSS JOIN {inbox}_message AS m ON m.seq = s.seq
WHERE {numbers} AND {filter}

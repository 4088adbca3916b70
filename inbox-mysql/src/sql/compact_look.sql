-- How many rows the tally has, of how many handlers, up to a number of rows; and the newest of these.
SELECT COUNT(*), COUNT(DISTINCT t.handler), MAX(t.n)
FROM (SELECT n, handler FROM {tally} ORDER BY n LIMIT {most}) AS t;

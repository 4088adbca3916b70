-- Ends the pause of handler $1; $2 whether to wake.
WITH resumed AS (DELETE FROM {inbox}_paused WHERE handler = $1)
SELECT pg_catalog.pg_notify('{channel}', '') WHERE $2

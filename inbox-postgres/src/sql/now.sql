-- The one clock of the inbox.
CREATE OR REPLACE FUNCTION {inbox}_now() RETURNS timestamptz
LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$ SELECT pg_catalog.clock_timestamp() $$;

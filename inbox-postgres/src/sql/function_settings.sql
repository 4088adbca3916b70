LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- Plans are made once per connection, perhaps while the tables are still empty. These settings
-- keep to the indexes whatever the tables looked like then.
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
SET jit = off

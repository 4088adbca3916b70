INSERT INTO {open} (handler, ordering_key, seq)
SELECT m.handler, m.ordering_key, m.seq FROM {stored} AND m.ordering_key IS NOT NULL;

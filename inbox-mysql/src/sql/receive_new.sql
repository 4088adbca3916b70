-- The keys of what was stored, unless that is the whole batch.
SELECT m.handler, m.id FROM {stored} AND @inbox_count < {most} {all_rows};

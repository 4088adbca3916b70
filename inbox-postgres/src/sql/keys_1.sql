CREATE UNIQUE INDEX "{prefix}_key" ON {message} (handler, id);

ALTER TABLE message ADD PRIMARY KEY (seq);
CREATE UNIQUE INDEX message_key ON message (handler, id);

ALTER TABLE work ADD PRIMARY KEY (seq);
CREATE INDEX work_claim ON work (handler, visible_at, seq);

ALTER TABLE done ADD PRIMARY KEY (seq);
CREATE INDEX done_final ON done (state, finished_at, seq);

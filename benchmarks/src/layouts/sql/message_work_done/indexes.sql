ALTER TABLE message ADD PRIMARY KEY (seq);
CREATE UNIQUE INDEX message_key ON message (handler, id);

ALTER TABLE work ADD PRIMARY KEY (seq);
CREATE INDEX work_claim ON work (handler, state, visible_at, seq) WHERE claimable;

ALTER TABLE done ADD PRIMARY KEY (seq);
CREATE INDEX done_final ON done (state, finished_at, seq);

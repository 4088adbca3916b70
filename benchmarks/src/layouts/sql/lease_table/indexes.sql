ALTER TABLE message ADD PRIMARY KEY (seq);
CREATE UNIQUE INDEX message_key ON message (handler, id);

ALTER TABLE pending ADD PRIMARY KEY (seq);
CREATE INDEX pending_claim ON pending (handler, visible_at, seq);

ALTER TABLE lease ADD PRIMARY KEY (seq);
CREATE INDEX lease_claim ON lease (handler, lease_until, seq);

ALTER TABLE done ADD PRIMARY KEY (seq);
CREATE INDEX done_final ON done (state, finished_at, seq);

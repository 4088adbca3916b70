ALTER TABLE message ADD PRIMARY KEY (seq);
CREATE UNIQUE INDEX message_key ON message (handler, id);
CREATE INDEX message_claim ON message (handler, state, visible_at, seq) WHERE claimable;
CREATE INDEX message_final ON message (state, finished_at, seq) WHERE state >= 2;

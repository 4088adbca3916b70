ALTER TABLE message ADD PRIMARY KEY (seq);
CREATE UNIQUE INDEX message_key ON message (handler, id);

ALTER TABLE state ADD PRIMARY KEY (seq);
CREATE INDEX state_claim ON state (handler, state, visible_at, seq) WHERE claimable;
CREATE INDEX state_final ON state (state, finished_at, seq) WHERE state >= 2;

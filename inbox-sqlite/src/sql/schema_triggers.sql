CREATE TRIGGER {inbox}_accepted AFTER INSERT ON {inbox}_message
BEGIN
    INSERT INTO {inbox}_state (seq, handler, ordering_key, claimable, visible_at, due_at)
    VALUES (
        NEW.seq, NEW.handler, NEW.ordering_key,
        NEW.ordering_key IS NULL OR NOT EXISTS (
            SELECT 1 FROM {inbox}_state
            WHERE handler = NEW.handler AND ordering_key = NEW.ordering_key
              AND ordering_key IS NOT NULL AND (state < 2 OR blocks = 1)
        ),
        NEW.first_due_at, NEW.first_due_at
    );
    INSERT INTO {inbox}_count (handler, unfinished) VALUES (NEW.handler, 1)
    ON CONFLICT (handler) DO UPDATE SET unfinished = unfinished + 1;
END;

CREATE TRIGGER {inbox}_purged AFTER DELETE ON {inbox}_message
BEGIN
    DELETE FROM {inbox}_state WHERE seq = OLD.seq;
END;

CREATE TRIGGER {inbox}_recounted AFTER UPDATE OF state ON {inbox}_state
WHEN NEW.state <> OLD.state AND (NEW.state > 1 OR OLD.state > 1)
BEGIN
    UPDATE {inbox}_count
    SET unfinished = unfinished + (NEW.state < 2) - (OLD.state < 2),
        processed = processed + (NEW.state = 2) - (OLD.state = 2),
        dead = dead + (NEW.state = 3) - (OLD.state = 3),
        discarded = discarded + (NEW.state = 4) - (OLD.state = 4)
    WHERE handler = NEW.handler;
END;

-- Whatever ends a lease, replays or discards: of an ordering key, the earliest leased message or else the
-- earliest open one becomes the one that can be claimed. A lease that has not run out when its turn comes
-- counts as a started attempt from then on. The end of a lease behind another one changes none of that.
CREATE TRIGGER {inbox}_reheaded AFTER UPDATE OF state ON {inbox}_state
WHEN NEW.ordering_key IS NOT NULL AND NEW.state <> 1 AND (OLD.claimable = 1 OR OLD.state <> 1)
BEGIN
    UPDATE {inbox}_state SET claimable = 0
    WHERE (NEW.state = 0 OR NEW.blocks = 1)
      AND handler = NEW.handler AND ordering_key = NEW.ordering_key
      AND ordering_key IS NOT NULL AND claimable = 1 AND (state = 0 OR worker IS NULL)
      AND (
          seq > (
              SELECT seq FROM {inbox}_state
              WHERE handler = NEW.handler AND ordering_key = NEW.ordering_key
                AND ordering_key IS NOT NULL AND (state < 2 OR blocks = 1)
              ORDER BY seq LIMIT 1
          )
          OR EXISTS (
              SELECT 1 FROM {inbox}_state
              WHERE handler = NEW.handler AND ordering_key = NEW.ordering_key
                AND claimable = 0 AND state = 1 AND worker IS NOT NULL
          )
      );
    UPDATE {inbox}_state
    SET claimable = 1,
        started = iif(
            state = 1 AND worker IS NOT NULL AND lease_until > coalesce(NEW.finished_at, NEW.lease_until),
            max(started, finished + 1), started
        )
    WHERE seq = coalesce(
          (
              SELECT seq FROM {inbox}_state
              WHERE handler = NEW.handler AND ordering_key = NEW.ordering_key
                AND claimable = 0 AND state = 1 AND worker IS NOT NULL
              ORDER BY seq LIMIT 1
          ),
          (
              SELECT seq FROM {inbox}_state
              WHERE handler = NEW.handler AND ordering_key = NEW.ordering_key
                AND ordering_key IS NOT NULL AND (state < 2 OR blocks = 1)
              ORDER BY seq LIMIT 1
          )
      )
      AND state < 2
      AND NOT EXISTS (
          SELECT 1 FROM {inbox}_state
          WHERE handler = NEW.handler AND ordering_key = NEW.ordering_key
            AND ordering_key IS NOT NULL AND claimable = 1
      );
END;

-- One of a run whose leases have run out is taken or put off: those leased behind it lose their leases, and
-- with them their turn. They are leased by nobody until they are claimed.
CREATE TRIGGER {inbox}_run_lost BEFORE UPDATE OF token ON {inbox}_state
WHEN OLD.ordering_key IS NOT NULL AND OLD.state = 1 AND NEW.state < 2 AND NEW.token <> OLD.token
BEGIN
    UPDATE {inbox}_state
    SET worker = NULL, lease_until = min(lease_until, OLD.lease_until),
        visible_at = min(visible_at, OLD.lease_until), token = max(token + 1, NEW.token)
    WHERE handler = OLD.handler AND ordering_key = OLD.ordering_key
      AND claimable = 0 AND state = 1 AND worker IS NOT NULL AND seq > OLD.seq;
END;

CREATE TRIGGER {inbox}_removed AFTER DELETE ON {inbox}_state
BEGIN
    UPDATE {inbox}_count
    SET unfinished = unfinished - (OLD.state < 2),
        processed = processed - (OLD.state = 2),
        dead = dead - (OLD.state = 3),
        discarded = discarded - (OLD.state = 4)
    WHERE handler = OLD.handler;
    -- An unfinished message of its ordering key has gone, or a dead one that blocked it.
    UPDATE {inbox}_state SET claimable = 1
    WHERE (OLD.state < 2 OR OLD.blocks = 1)
      AND seq = coalesce(
          (
              SELECT seq FROM {inbox}_state
              WHERE handler = OLD.handler AND ordering_key = OLD.ordering_key
                AND claimable = 0 AND state = 1 AND worker IS NOT NULL
              ORDER BY seq LIMIT 1
          ),
          (
              SELECT seq FROM {inbox}_state
              WHERE handler = OLD.handler AND ordering_key = OLD.ordering_key
                AND ordering_key IS NOT NULL AND (state < 2 OR blocks = 1)
              ORDER BY seq LIMIT 1
          )
      )
      AND state < 2
      AND NOT EXISTS (
          SELECT 1 FROM {inbox}_state
          WHERE handler = OLD.handler AND ordering_key = OLD.ordering_key
            AND ordering_key IS NOT NULL AND claimable = 1
      );
END;

-- Payloads are dropped and edited after results are set.
CREATE TRIGGER {inbox}_refilled AFTER UPDATE OF payload ON {inbox}_message
BEGIN
    UPDATE {inbox}_state SET has_content = NEW.payload IS NOT NULL OR result IS NOT NULL
    WHERE seq = NEW.seq;
END;

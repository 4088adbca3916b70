UPDATE {work}
SET queue = 1, token = GREATEST(token + 1, @inbox_now), started = started + 1, worker = {worker},
    leased_at = @inbox_now, visible_at = @inbox_now + {length}
WHERE seq = @inbox_seq AND queue < 2 AND visible_at <= @inbox_now;

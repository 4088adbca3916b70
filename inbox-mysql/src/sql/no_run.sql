-- Whether nothing has to be done about a run when this message is taken, whose lease has run out if it has one.
(w.queue = 0 OR (
    SELECT COUNT(*) FROM {run} AS r
    WHERE r.handler = w.handler AND r.ordering_key = w.ordering_key
    FOR UPDATE
) = 0);

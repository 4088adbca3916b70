-- Whether the next number is one that a message has. The messages are seen as they were when this
-- began, and the sequence as it is now: what was received meanwhile does not matter.
SELECT greatest(
    (SELECT max(seq) FROM {inbox}_message), (SELECT max(seq) FROM {inbox}_work), (SELECT max(seq) FROM {inbox}_done)
) >= (SELECT s.last_value + CASE WHEN s.is_called THEN 1000 ELSE 0 END FROM {inbox}_seq AS s)

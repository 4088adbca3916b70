-- Effects with the states of their messages; 2 is `processed`.
SELECT
    (SELECT count(*) FROM demo_effect) AS total,
    (SELECT count(*) FROM (
        SELECT message_id FROM demo_effect GROUP BY message_id HAVING count(*) > 1
    )) AS doubled,
    (SELECT count(*) FROM inbox_message m JOIN inbox_state s USING (seq)
        WHERE s.state = 2 AND m.id NOT IN (SELECT message_id FROM demo_effect)) AS missing,
    (SELECT count(*) FROM demo_effect e
        WHERE NOT EXISTS (
            SELECT 1 FROM inbox_message m JOIN inbox_state s USING (seq)
            WHERE m.id = e.message_id AND s.state = 2
        )) AS unfounded

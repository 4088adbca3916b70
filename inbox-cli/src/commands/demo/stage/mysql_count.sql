-- Effects with the states of their messages; 2 is `processed`.
SELECT
    (SELECT COUNT(*) FROM {effect}) AS total,
    (SELECT COUNT(*) FROM (
        SELECT message_id FROM {effect} GROUP BY message_id HAVING COUNT(*) > 1
    ) AS several) AS doubled,
    (SELECT COUNT(*) FROM {message} AS m JOIN {done} AS f ON f.seq = m.seq
        WHERE f.state = 2 AND m.id NOT IN (SELECT message_id FROM {effect})) AS missing,
    (SELECT COUNT(*) FROM {effect} AS e
        WHERE NOT EXISTS (
            SELECT 1 FROM {message} AS m JOIN {done} AS f ON f.seq = m.seq
            WHERE m.id = e.message_id AND f.state = 2
        )) AS unfounded

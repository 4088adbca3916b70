-- Effects with the states of their messages.
SELECT
    (SELECT count(*) FROM {schema}.demo_effect) AS total,
    (SELECT count(*) FROM (
        SELECT message_id FROM {schema}.demo_effect GROUP BY message_id HAVING count(*) > 1
    ) AS several) AS doubled,
    (SELECT count(*) FROM {schema}.inbox_overview AS m
        WHERE m.state = 'processed'
          AND NOT EXISTS (SELECT FROM {schema}.demo_effect AS e WHERE e.message_id = m.id)
    ) AS missing,
    (SELECT count(*) FROM {schema}.demo_effect AS e
        WHERE NOT EXISTS (
            SELECT FROM {schema}.inbox_overview AS m
            WHERE m.id = e.message_id AND m.state = 'processed'
        )) AS unfounded

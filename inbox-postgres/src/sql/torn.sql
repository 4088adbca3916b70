-- What is left when some of the tables were loaded from a dump and others were not: the first of
-- these that holds. Looks at few rows, most of them those that came first and last.
SELECT CASE
    WHEN EXISTS (
        SELECT FROM (
            (SELECT seq FROM {message} ORDER BY seq LIMIT 100)
            UNION ALL
            (SELECT seq FROM {message} ORDER BY seq DESC LIMIT 100)
        ) AS m
        WHERE NOT EXISTS (SELECT FROM {work} AS w WHERE w.seq = m.seq)
          AND NOT EXISTS (SELECT FROM {done} AS d WHERE d.seq = m.seq)
    ) THEN 'there are messages of which neither {prefix}_work nor {prefix}_done knows'
    WHEN NOT EXISTS (SELECT FROM {message}) AND (
        EXISTS (SELECT FROM {work}) OR EXISTS (SELECT FROM {done})
    ) THEN '{prefix}_message is empty, and {prefix}_work or {prefix}_done is not'
    WHEN EXISTS (
        SELECT FROM (
            (
                SELECT handler, ordering_key FROM {work}
                WHERE ordering_key IS NOT NULL AND (state < 2 OR blocks)
                ORDER BY handler, ordering_key, seq LIMIT 100
            )
            UNION ALL
            (
                SELECT handler, ordering_key FROM {work}
                WHERE ordering_key IS NOT NULL AND (state < 2 OR blocks)
                ORDER BY handler DESC, ordering_key DESC, seq DESC LIMIT 100
            )
        ) AS w
        WHERE NOT EXISTS (
            SELECT FROM {ordering} AS o
            WHERE o.handler = w.handler AND o.ordering_key = w.ordering_key
        )
    ) THEN '{prefix}_ordering lacks ordering keys of {prefix}_work'
    -- Of many rows it counts the first ones only: a tally that knows of as many is not empty. It may
    -- know of more than there are, while the keys of a partition that was dropped are deleted.
    WHEN EXISTS (
        SELECT FROM (
            SELECT coalesce(sum(pending + leased + dead), 0) AS work,
                coalesce(sum(processed + discarded), 0) AS done
            FROM {tally}
        ) AS t
        WHERE t.work < (SELECT count(*) FROM (SELECT FROM {work} LIMIT 1000) AS w)
           OR t.done < (SELECT count(*) FROM (SELECT FROM {done} LIMIT 1000) AS d)
    ) THEN '{prefix}_tally does not count what is in {prefix}_work and {prefix}_done'
{torn}
END

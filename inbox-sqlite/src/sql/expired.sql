SELECT f.finished_at, f.seq
    FROM {inbox}_count AS n
    CROSS JOIN (VALUES (0), (1)) AS c
    CROSS JOIN {inbox}_state AS f ON f.seq IN (
        SELECT seq FROM {inbox}_state
        WHERE handler = n.handler AND state = ?1 AND has_content = c.column1 AND finished_at <= ?2
        ORDER BY finished_at, seq LIMIT ?3
    )
    WHERE (?4 IS NULL OR n.handler = ?4) AND c.column1 >= ?5
    ORDER BY f.finished_at, f.seq
    LIMIT ?3

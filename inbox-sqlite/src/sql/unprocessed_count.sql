SELECT sum(
        unfinished * ((SELECT min(value) FROM json_each(?4)) < 2)
        + dead * (3 IN (SELECT value FROM json_each(?4)))
        + discarded * (4 IN (SELECT value FROM json_each(?4)))
    )
    FROM {inbox}_count
    WHERE ?5 IS NULL OR handler = ?5

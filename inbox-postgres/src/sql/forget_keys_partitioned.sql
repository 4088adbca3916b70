forgotten AS (
        DELETE FROM {keys} AS k
        USING gone AS g
        WHERE k.handler = ANY (ARRAY[g.handler]) AND k.id = ANY (ARRAY[g.id])
    ),

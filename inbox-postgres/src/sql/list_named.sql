s.seq = ANY (ARRAY(
              SELECT k.seq
              FROM (
                  SELECT DISTINCT t.handler FROM {inbox}_tally AS t
                  WHERE $4::text IS NULL OR t.handler = $4
              ) AS h
              CROSS JOIN unnest($12::text[]) AS i (id)
              CROSS JOIN LATERAL (
                  SELECT k.seq FROM {keys} AS k WHERE k.handler = h.handler AND k.id = i.id OFFSET 0
              ) AS k
          ))

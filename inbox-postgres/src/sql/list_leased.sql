s.state = 1 AND s.visible_at > clock.instant
          AND s.seq = ANY (ARRAY(
              SELECT w.seq
              FROM (
                  SELECT DISTINCT t.handler FROM {inbox}_tally AS t
                  WHERE $4::text IS NULL OR t.handler = $4
              ) AS h
              CROSS JOIN LATERAL (
                  (
                      SELECT w.seq FROM {inbox}_work AS w
                      WHERE w.handler = h.handler AND w.claimable AND NOT w.late AND w.state = 1
                      OFFSET 0
                  )
                  UNION ALL
                  (
                      SELECT w.seq FROM {inbox}_work AS w
                      WHERE w.handler = h.handler AND w.behind
                      OFFSET 0
                  )
              ) AS w
          ))

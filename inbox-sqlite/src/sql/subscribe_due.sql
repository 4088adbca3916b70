-- ?1 now. Whether there is a message that can be claimed, of a handler that is not paused.
SELECT EXISTS (
    SELECT 1 FROM {inbox}_count AS n
    WHERE n.unfinished > 0
      AND EXISTS (
          SELECT 1 FROM {inbox}_state AS c
          WHERE c.claimable = 1 AND c.handler = n.handler AND c.visible_at <= ?1
      )
      AND NOT EXISTS (SELECT 1 FROM {inbox}_paused AS p WHERE p.handler = n.handler)
)

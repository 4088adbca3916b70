{states}
  AND (?4 IS NULL OR iif(s.state = 1 AND s.lease_until <= ?3, 0, s.state)
      IN (SELECT value FROM json_each(?4)))
  AND (?5 IS NULL OR s.handler = ?5)
  AND (?6 IS NULL OR m.kind = ?6)
  AND (?7 IS NULL OR s.ordering_key = ?7)
  AND (?8 IS NULL OR m.accepted_at <= ?8)
  AND (?9 IS NULL OR m.accepted_at > ?9)
  AND (?10 IS NULL OR instr(s.last_error, ?10) > 0)

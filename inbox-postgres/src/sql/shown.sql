CASE WHEN s.state = 1 AND s.visible_at <= clock.instant THEN 0 ELSE s.state END

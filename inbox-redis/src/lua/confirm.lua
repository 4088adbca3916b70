-- KEYS: meta. Writes something behind all that was written before, for WAIT to wait for. Answers 1, or
-- 0 when there is no inbox.
if redis.call('HGET', KEYS[1], 'version') then
  redis.call('HSET', KEYS[1], 'confirmed', '1')
  return 1
end
return 0

-- ARGV: key, guard. Answers 1 when the message is here; else makes sure that whoever reserved
-- that guard can no longer store it here.
local key, guard = ARGV[arg], ARGV[arg + 1]
local s = load(key)
if s and s.state ~= GUARD then return 1 end
call('ZREMRANGEBYSCORE', fences, '-inf', now - 3600000000)
call('ZADD', fences, now, key .. '\0' .. guard)
return 0

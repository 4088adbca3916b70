-- ARGV: key and guard of each message that was placed and is gone. Removes those guards and no
-- others, and what may still be staged under them.
local removed = 0
for at = arg, #ARGV, 2 do
  local s = load(ARGV[at])
  if s and s.state == GUARD and s.guard == tonumber(ARGV[at + 1]) then
    removed = removed + call('HDEL', ids, s.key)
    call('HDEL', staged, s.key)
    call('ZREM', staging, s.key)
  end
end
return removed

-- ARGV: key and guard of each message that is now where it belongs. Its body at home goes.
local removed = {}
for at = arg, #ARGV, 2 do
  local s = load(ARGV[at])
  if s and s.state == GUARD and s.guard == tonumber(ARGV[at + 1]) then removed[#removed + 1] = ARGV[at] end
end
put('HDEL', staged, removed)
put('ZREM', staging, removed)
return #removed

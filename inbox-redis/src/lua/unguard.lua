-- ARGV: key and guard of each. Removes those guards and no others.
local removed = 0
for at = arg, #ARGV, 2 do
  local s = load(ARGV[at])
  if s and s.state == GUARD and s.guard == tonumber(ARGV[at + 1]) and not call('ZSCORE', staging, s.key) then
    removed = removed + call('HDEL', ids, ARGV[at])
  end
end
return removed

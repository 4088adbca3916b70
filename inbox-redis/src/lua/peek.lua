-- ARGV: limit. Answers the time, then when the longest-due messages became claimable, and their numbers.
local limit, found = tonumber(ARGV[arg]), {}
for _, keys in pairs(handlers) do
  for _, set in ipairs({keys.due, keys.leased}) do
    local list = call('ZRANGEBYSCORE', set, '-inf', integer(now), 'WITHSCORES', 'LIMIT', 0, limit)
    for n = 1, #list, 2 do
      found[#found + 1] = {tonumber(list[n + 1]), (struct.unpack('>I6', list[n]))}
    end
  end
end
table.sort(found, function(a, b)
  if a[1] ~= b[1] then return a[1] < b[1] end
  return a[2] < b[2]
end)
for n = #found, limit + 1, -1 do found[n] = nil end
return {time, found}

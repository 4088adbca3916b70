-- ARGV: limit. Answers the time, then when the longest-due messages became claimable, and their
-- numbers.
leave_out_paused()
local limit, found = tonumber(ARGV[arg]), {}
for _, keys in pairs(handlers) do
  for _, set in ipairs({'due', 'leased'}) do
    local list = call('ZRANGEBYSCORE', keys[set], '-inf', integer(right_now), 'WITHSCORES', 'LIMIT', 0, limit)
    for n = 1, #list, 2 do
      found[#found + 1] = {tonumber(list[n + 1]), (struct.unpack('>I6', list[n]))}
    end
  end
  for _, set in ipairs({'run_due', 'run_leased'}) do
    for _, f in ipairs((claimable_runs(keys[set], limit))) do
      for _, number in ipairs(f.run and numbers_of(f.run) or {}) do found[#found + 1] = {f.at, number} end
    end
  end
end
table.sort(found, function(a, b)
  if a[1] ~= b[1] then return a[1] < b[1] end
  return a[2] < b[2]
end)
for n = #found, limit + 1, -1 do found[n] = nil end
return {time, found}

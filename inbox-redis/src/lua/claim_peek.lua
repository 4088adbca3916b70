-- ARGV: limit, most of an ordering key. Answers the time, then when the longest-due messages became claimable,
-- their numbers, and how many a claim takes with each.
leave_out_paused()
local limit, run_limit, found = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1]), {}
for handler, keys in pairs(handlers) do
  for _, set in ipairs({'due', 'leased'}) do
    local list = call('ZRANGEBYSCORE', keys[set], 0, integer(right_now), 'WITHSCORES', 'LIMIT', 0, limit)
    for n = 1, #list, 2 do
      found[#found + 1] = {tonumber(list[n + 1]), (struct.unpack('>I6', list[n])), 1, handler, string.sub(list[n], 7)}
    end
  end
  for _, set in ipairs({'run_due', 'run_leased'}) do
    for _, f in ipairs((claimable_runs(keys[set], limit))) do
      for _, number in ipairs(f.run and numbers_of(f.run) or {}) do found[#found + 1] = {f.at, number, 1} end
    end
  end
end
table.sort(found, function(a, b)
  if a[1] ~= b[1] then return a[1] < b[1] end
  return a[2] < b[2]
end)
local answer, messages = {}, 0
for n, f in ipairs(found) do
  if messages >= limit then break end
  local handler, s = f[4], run_limit > 1 and f[5] and load(f[5])
  if s and s.state ~= -1 then f[3] = 1 + #followers(handler, s, math.min(run_limit, limit - messages) - 1) end
  messages = messages + f[3]
  answer[n] = {f[1], f[2], f[3]}
end
return {time, answer}

-- ARGV: what to read, then its values. Writes nothing.
local what = ARGV[arg]

if what == 'get' then
  local s = load(ARGV[arg + 1])
  if not s then return {} end
  if s.state == GUARD then return {'guard', s.shard, s.guard} end
  local result = s.flags and s.flags % 4 >= 2 and call('HGET', results, s.key)
  return {now, full_row(s), call('HGET', body, s.key), result}
elseif what == 'places' then
  local answer = {}
  for at = arg + 1, #ARGV do
    local s = load(ARGV[at])
    answer[#answer + 1] = s and s.state == GUARD and s.shard
  end
  return answer
elseif what == 'bodies' then
  local answer = {}
  for at = arg + 1, #ARGV do
    answer[#answer + 1] = {call('HGET', body, ARGV[at]), call('HGET', results, ARGV[at])}
  end
  return answer
elseif what == 'list' then
  -- Number to start at, number to end at, rows, whether backwards, whether only dead ones.
  local from, to, rows = ARGV[arg + 1], ARGV[arg + 2], tonumber(ARGV[arg + 3])
  local backwards, only_dead = ARGV[arg + 4] == '1', ARGV[arg + 5] == '1'
  local found = {}
  local function indexed(set)
    local list
    if backwards then
      list = call('ZREVRANGEBYSCORE', set, to, from, 'WITHSCORES', 'LIMIT', 0, rows)
    else
      list = call('ZRANGEBYSCORE', set, from, to, 'WITHSCORES', 'LIMIT', 0, rows)
    end
    for n = 1, #list, 2 do found[#found + 1] = {tonumber(list[n + 1]), list[n], false} end
  end
  if only_dead then
    indexed(dead)
  else
    local list
    if backwards then
      list = call('XREVRANGE', log, to, from, 'COUNT', rows)
    else
      list = call('XRANGE', log, from, to, 'COUNT', rows)
    end
    for n, entry in ipairs(list) do
      found[n] = {tonumber(string.match(entry[1], '^%d+')), entry[2][2], entry[2][4]}
    end
    indexed(late)
  end
  table.sort(found, function(a, b)
    if backwards then return a[1] > b[1] end
    return a[1] < b[1]
  end)
  local more = #found >= rows and 1 or 0
  local keys, answer = {}, {}
  for n = 1, math.min(#found, rows) do keys[n] = found[n][2] end
  load_all(keys)
  for n, key in ipairs(keys) do
    local s = states[key] or {key = key, state = -1}
    local err = s.flags and s.flags % 2 == 1 and call('HGET', errors, key)
    if s.state == GUARD then s = {key = key, state = -1} end
    local static = found[n][3] or (s.state ~= -1 and static_of(s))
    answer[n] = {found[n][1], row(s, static, err)}
  end
  return {now, more, answer}
elseif what == 'expired' then
  -- State, age, limit: what purge would delete, longest-finished first.
  local state, cutoff, limit = tonumber(ARGV[arg + 1]), now - ARGV[arg + 2], tonumber(ARGV[arg + 3])
  local answer = {}
  if cutoff >= 0 then
    for _, s in ipairs(finished_by(state, cutoff, limit)) do
      answer[#answer + 1] = {s.at, full_row(s)}
    end
  end
  return {now, answer}
elseif what == 'handlers' then
  return call('HKEYS', counts)
else
  local answer = {}
  for handler, keys in pairs(handlers) do
    local one = {handler}
    for state = PENDING, DISCARDED do
      one[#one + 1] = tonumber(call('HGET', counts, handler .. '\0' .. state) or 0)
    end
    one[7] = call('ZCOUNT', keys.leased, '-inf', integer(now))
    local first
    for _, set in ipairs({keys.due, keys.leased}) do
      local head = call('ZRANGEBYSCORE', set, '-inf', integer(now), 'WITHSCORES', 'LIMIT', 0, 1)
      if head[1] and (not first or tonumber(head[2]) < first[1] or (tonumber(head[2]) == first[1] and head[1] < first[2])) then
        first = {tonumber(head[2]), head[1]}
      end
    end
    local s = first and load(string.sub(first[2], 7))
    one[8] = now
    one[9] = first and first[1] or -1
    one[10] = first and (struct.unpack('>I6', first[2])) or -1
    one[11] = s and s.accepted or -1
    answer[#answer + 1] = one
  end
  return answer
end

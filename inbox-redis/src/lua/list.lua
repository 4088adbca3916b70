-- ARGV: number to start at, number to end at, rows, whether backwards, whether only dead ones.
local from, to, rows = ARGV[arg], ARGV[arg + 1], tonumber(ARGV[arg + 2])
local backwards, only_dead = ARGV[arg + 3] == '1', ARGV[arg + 4] == '1'
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
  -- The entry in which the range begins may have an earlier number. Entries can overlap: there are
  -- enough when all others are out of the range of what was found.
  local from_number, to_number = tonumber(from), tonumber(to)
  local first, last, enough, furthest = integer(math.max(from_number - SPAN, 0)), to, false, nil
  local upper = to_number
  while not enough do
    local list
    if backwards then
      list = is_before_log(upper) and {} or call('XREVRANGE', log, last, first, 'COUNT', 64)
    else
      list = call('XRANGE', log, first, last, 'COUNT', 64)
    end
    for _, raw in ipairs(list) do
      local id = tonumber(string.match(raw[1], '^%d+'))
      if furthest and (backwards and id + SPAN < furthest or not backwards and id > furthest) then
        enough = true
        break
      end
      local entry = entry_items(raw)
      local items = entry and entry.items or {}
      for place = 1, #items do
        local item = items[backwards and #items + 1 - place or place]
        if item.seq >= from_number and item.seq <= to_number then found[#found + 1] = {item.seq, item.key, item.static, item.bytes} end
      end
      if #found >= rows and not furthest then
        furthest = found[1][1]
        for _, f in ipairs(found) do furthest = backwards and math.min(furthest, f[1]) or math.max(furthest, f[1]) end
      end
    end
    if #list < 64 then break end
    if backwards then
      last, upper = '(' .. list[#list][1], tonumber(string.match(list[#list][1], '^%d+')) - 1
    else
      first = '(' .. list[#list][1]
    end
  end
  indexed(late)
end
table.sort(found, function(a, b)
  if backwards then return a[1] > b[1] end
  return a[1] < b[1]
end)
local keys, answer, last = {}, {}, readable(found, math.min(#found, rows))
local more = (#found >= rows or last < #found) and 1 or 0
for n = 1, last do keys[n] = found[n][2] end
load_all(keys)
for n, key in ipairs(keys) do
  local s = states[key] or nil
  -- Of an entry of the log, some messages may be gone, and have come again under other numbers.
  if s and (s.state == -1 or s.seq == found[n][1]) then
    local err = s.flags and has_flag(s, HAS_ERROR) and call('HGET', errors, key)
    local static, bytes = found[n][3], found[n][4]
    if s.state ~= -1 and (not static or has_flag(s, EDITED)) then static, bytes = static_of(s) end
    answer[#answer + 1] = {found[n][1], row(s, static, err, bytes)}
  end
end
return {now, more, #keys > 0 and found[#keys][1] or 0, answer}

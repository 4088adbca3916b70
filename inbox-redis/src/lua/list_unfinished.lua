-- ARGV: number to start at, number to end at, rows, whether backwards, whether pending ones are wanted, whether dead
-- ones are, an ordering key or nothing. Answers what `list.lua` does, of the call's handlers' messages that are
-- pending or leased, and of dead ones if they are wanted: found where they wait, without the history. Answers
-- nothing when these are too many for one script to put in order.
local MOST = 5000
local from, to, rows = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
local backwards, with_pending, with_dead = ARGV[arg + 3] == '1', ARGV[arg + 4] == '1', ARGV[arg + 5] == '1'
local okey = ARGV[arg + 6]
local found, known = {}, {}

local function add(seq, key)
  if seq >= from and seq <= to and not known[seq] then
    known[seq] = true
    found[#found + 1] = {seq, key}
  end
end

-- The number and the key that begin in a member there.
local function add_member(member, at)
  if #member >= at + 6 then add((struct.unpack('>I6', member, at)), string.sub(member, at + 6)) end
end

local function add_open(member)
  add_member(member, (string.find(member, '\0', 1, true) or #member) + 1)
end

-- The ordering keys' sets are in order: forwards the first of them are enough.
local function add_of_key(keys)
  local first = '[' .. okey .. '\0' .. struct.pack('>I6', math.min(from, 2 ^ 48 - 1))
  local most = backwards and MOST + 1 or rows
  local list = call('ZRANGEBYLEX', keys.open, first, '(' .. okey .. '\1', 'LIMIT', 0, most)
  for _, member in ipairs(list) do add_open(member) end
  return #list <= MOST
end

local function number_of(handler)
  local number = 0
  for _, state in ipairs(with_pending and {PENDING, LEASED, BLOCKING} or {LEASED}) do
    number = number + tonumber(call('HGET', counts, handler .. '\0' .. state) or 0)
  end
  return number
end

-- What is leased may be shown as pending.
local function add_of_handler(keys)
  for _, set in ipairs(with_pending and {'leased', 'due'} or {'leased'}) do
    for _, member in ipairs(call('ZRANGEBYSCORE', keys[set], '-inf', '+inf')) do
      add_member(member, 1)
    end
  end
  for _, set in ipairs(with_pending and {'run_leased', 'run_due'} or {'run_leased'}) do
    for _, member in ipairs(call('ZRANGEBYSCORE', keys[set], '-inf', '+inf')) do
      local run = #member == 6 and run_at((struct.unpack('>I6', member)))
      for _, seq in ipairs(run and numbers_of(run) or {}) do add(seq, false) end
    end
  end
  if with_pending then
    for _, member in ipairs(call('ZRANGEBYSCORE', keys.open, '-inf', '+inf')) do add_open(member) end
  end
end

local function add_dead()
  local list
  if backwards then
    list = call('ZREVRANGEBYSCORE', dead, ARGV[arg + 1], ARGV[arg], 'WITHSCORES', 'LIMIT', 0, rows)
  else
    list = call('ZRANGEBYSCORE', dead, ARGV[arg], ARGV[arg + 1], 'WITHSCORES', 'LIMIT', 0, rows)
  end
  for n = 1, #list, 2 do add(tonumber(list[n + 1]), list[n]) end
end

if okey ~= '' then
  for _, keys in pairs(handlers) do
    if not add_of_key(keys) then return {} end
  end
else
  local number = 0
  for handler in pairs(handlers) do number = number + number_of(handler) end
  if number > MOST then return {} end
  for _, keys in pairs(handlers) do add_of_handler(keys) end
end
if with_dead then add_dead() end
table.sort(found, function(a, b)
  if backwards then return a[1] > b[1] end
  return a[1] < b[1]
end)
local last, keys, answer = readable(found, math.min(#found, rows)), {}, {}
for n = 1, last do
  -- Of a run's message only the log has the key.
  found[n][2] = found[n][2] or logged(found[n][1]) or nil
  if found[n][2] then keys[#keys + 1] = found[n][2] end
end
load_all(keys)
for n = 1, last do
  local seq, key = found[n][1], found[n][2]
  local s = key and states[key] or nil
  if s and (s.state == -1 or s.seq == seq) and (okey == '' or s.okey == okey) then
    answer[#answer + 1] = {seq, full_row(s)}
  end
end
return {now, (#found >= rows or last < #found) and 1 or 0, last > 0 and found[last][1] or 0, answer}

-- Rules that do not hold among the keys of one shard. Knows their layout and nothing of the store's own
-- scripts. KEYS: the shard's marker. All other keys begin as it does, and so are in its slot.
local prefix = string.sub(KEYS[1], 1, -#'meta' - 1)
local PENDING, LEASED, PROCESSED, DEAD, BLOCKING = 0, 1, 2, 3, 5
local RUN, BLOCKS, EDITED, HAS_HISTORY, BEHIND = 114, 4, 8, 16, 32
local call = redis.call
local counted, broken = {}, {}

local function breaks(rule)
  if not counted[rule] then
    counted[rule] = 0
    broken[#broken + 1] = rule
  end
  counted[rule] = counted[rule] + 1
end

local function set_of(list)
  local set = {}
  for _, member in ipairs(list) do set[member] = true end
  return set
end

local function pairs_of(list)
  local found = {}
  for n = 1, #list, 2 do found[list[n]] = list[n + 1] end
  return found
end

local function text(number) return string.format('%.0f', number) end

-- What should be in a key by its name: member or field, and score or value.
local expected = {}
local function expect(key, member, value)
  expected[key] = expected[key] or {}
  expected[key][member] = value
end

-- Runs: by their first number.
local runs, by_number = {}, {}
for raw, score in pairs(pairs_of(call('ZRANGE', prefix .. 'runs', 0, -1, 'WITHSCORES'))) do
  local base, n, last, origin, state, accepted, due, _, _, at, _, _, dropped, _, handler, offsets = cmsgpack.unpack(raw)
  local run = {base = base, n = n, last = last, state = state, at = at, handler = handler, seen = 0}
  if tonumber(score) ~= base then breaks('a run under another number than its first') end
  if state > PROCESSED then breaks('a run in a state that runs do not have') end
  runs[base] = run
  for place = 1, n do
    local seq = offsets == '' and base + place - 1 or origin + struct.unpack('>I2', offsets, 2 * place - 1)
    if by_number[seq] then breaks('a number of two runs') end
    by_number[seq] = run
  end
  if not dropped then expect('blobs', text(base), true) end
  local member = struct.pack('>I6', base)
  if state == PENDING then expect('run_due:' .. handler, member, due) end
  if state == LEASED then expect('run_leased:' .. handler, member, at) end
end
local bases = {}
for base in pairs(runs) do bases[#bases + 1] = base end
table.sort(bases)
for n = 2, #bases do
  if runs[bases[n - 1]].last >= bases[n] then breaks('ranges of runs overlap') end
end

-- What the log says of each number.
local logged = {}
for _, entry in ipairs(call('XRANGE', prefix .. 'log', '-', '+')) do
  local origin, packed, at = tonumber(entry[2][2]), entry[2][4], 1
  while at <= #packed do
    local distance, length
    distance, length, at = struct.unpack('>I2I2', packed, at)
    logged[origin + distance] = string.sub(packed, at, at + length - 1)
    at = at + length
    length, at = struct.unpack('>I4', packed, at)
    at = at + length + 4
  end
end
local statics = set_of(call('HKEYS', prefix .. 'statics'))
for key, seq in pairs(pairs_of(call('ZRANGE', prefix .. 'late', 0, -1, 'WITHSCORES'))) do
  logged[tonumber(seq)] = key
  if not statics[key] then breaks('a late message without its static part') end
  statics[key] = nil
end

-- The numbers that became final at a moment.
local finals = {}
local FINAL = {[PROCESSED] = 'done:processed:', [DEAD] = 'done:dead:', [4] = 'done:discarded:'}
local function final_at(handler, state, at, seq)
  local key = FINAL[state] .. handler
  if not finals[key] then
    finals[key] = {}
    for _, entry in ipairs(call('XRANGE', prefix .. key, '-', '+')) do
      local of_moment = {}
      for place = 1, #entry[2][2] - 7, 8 do
        local number, n = struct.unpack('>I6I2', entry[2][2], place)
        of_moment[number] = true
        if n > 0 then of_moment.runs = true end
      end
      finals[key][tonumber(string.match(entry[1], '^%d+'))] = of_moment
    end
  end
  local of_moment = finals[key][at]
  -- One that was part of a run then stands under the run's number.
  return of_moment and (of_moment[seq] or of_moment.runs)
end

-- Messages.
local counts, keys, numbers = {}, {}, {}
local function count(handler, state, by)
  local field = handler .. '\0' .. state
  counts[field] = (counts[field] or 0) + by
end
for key, raw in pairs(pairs_of(call('HGETALL', prefix .. 'ids'))) do
  local handler, seq = string.match(key, '^[^%z]*'), nil
  if string.byte(raw) == RUN then
    seq = struct.unpack('>I6', raw, 2)
    local run = by_number[seq]
    if not run then
      breaks('a message of a run that there is not')
    else
      run.seen = run.seen + 1
      if run.handler ~= handler then breaks('a message in a run of another handler') end
    end
  else
    local state, number, accepted, due, _, _, at, started, finished, _, bytes, flags, worker, okey = cmsgpack.unpack(raw)
    seq, due, at = number, accepted + due, accepted + at
    local member = struct.pack('>I6', seq) .. key
    local function has(flag) return math.floor(flags / flag) % 2 == 1 end
    local blocks = has(BLOCKS)
    count(handler, state, 1)
    if finished > started then breaks('more attempts finished than started') end
    if bytes >= 0 then expect('body', key, true) end
    if has(EDITED) then statics[key] = nil end
    if flags % 2 == 1 then expect('errors', key, true) end
    if has(HAS_HISTORY) then expect('errors', key .. '\0', true) end
    if flags % 4 >= 2 then expect('results', key, true) end
    if state == LEASED and not okey then expect('leased:' .. handler, member, at) end
    if has(BEHIND) and (state ~= LEASED or not okey) then breaks('behind others without a lease or an ordering key') end
    if state == DEAD then expect('dead', key, seq) end
    if state == PENDING and not okey then expect('due:' .. handler, member, due) end
    if state >= PROCESSED and not final_at(handler, state, at, seq) then
      breaks('a final message that retention does not find')
    end
    if blocks then
      count(handler, BLOCKING, 1)
      if state ~= DEAD or not okey then breaks('a block without an ordering key or a death') end
    end
    if okey and (state <= LEASED or blocks) then
      expect('open:' .. handler, okey .. '\0' .. member, 0)
      local name = handler .. '\0' .. okey
      local of_key = keys[name] or {handler = handler, okey = okey, leased = {}}
      keys[name] = of_key
      if state == LEASED then
        of_key.leased[#of_key.leased + 1] = {member = member, at = at, behind = has(BEHIND), held = worker ~= ''}
      end
      if not of_key.seq or seq < of_key.seq then
        of_key.seq, of_key.first, of_key.state, of_key.due = seq, member, state, due
      end
    end
  end
  if numbers[seq] then breaks('a number of two messages') end
  numbers[seq] = true
  if logged[seq] ~= key then breaks('a message that is not in the log') end
end
for _, run in pairs(runs) do
  if run.seen ~= run.n then breaks('a run with more or fewer messages than it says') end
  count(run.handler, run.state, run.n)
  if run.state == PROCESSED and not final_at(run.handler, PROCESSED, run.at, run.base) then
    breaks('a processed run that retention does not find')
  end
end
for _, of_key in pairs(keys) do
  -- The first that a worker has leased can be claimed when its lease has run out, and has its attempt counted
  -- before. The leases of others may be lost.
  table.sort(of_key.leased, function(a, b) return a.member < b.member end)
  local head, is_held = of_key.first, false
  for _, one in ipairs(of_key.leased) do
    if one.held and not is_held then head, is_held = one.member, true end
  end
  for _, one in ipairs(of_key.leased) do
    local is_head = one.member == head
    expect('leased:' .. of_key.handler, one.member, is_head and one.at or -one.at)
    if not is_head and not one.behind then breaks('a key with two leased messages whose attempts count') end
    if not is_head and one.held then expect('behind:' .. of_key.handler .. ':' .. of_key.okey, one.member, true) end
  end
  expect('heads:' .. of_key.handler, of_key.okey, head)
  if not is_held and of_key.state == PENDING then
    expect('due:' .. of_key.handler, of_key.first, of_key.due)
  end
end
for field, n in pairs(counts) do expect('counts', field, n) end
if next(statics) then breaks('a static part of no late or edited message') end

-- What is there, against what should be.
local function compare(name, found, exact)
  local wanted = expected[name] or {}
  local what = string.match(name, '^[^:]*')
  for member, value in pairs(found) do
    if wanted[member] == nil then
      breaks('too much in ' .. what)
    elseif exact and wanted[member] ~= value and wanted[member] ~= tonumber(value) then
      breaks('another value in ' .. what)
    end
  end
  for member in pairs(wanted) do
    if found[member] == nil then breaks('too little in ' .. what) end
  end
  expected[name] = nil
end
for _, key in ipairs(call('KEYS', string.gsub(prefix, '[%[%]*?\\]', '\\%0') .. '*')) do
  local name = string.sub(key, #prefix + 1)
  local what = string.match(name, '^[^:]*')
  if what == 'body' or what == 'errors' or what == 'results' or what == 'blobs' then
    compare(name, set_of(call('HKEYS', key)), false)
  elseif what == 'heads' then
    local heads = pairs_of(call('HGETALL', key))
    for field, value in pairs(heads) do
      local okey = string.match(field, '^(.*)%z$')
      if okey then
        heads[field] = nil
        local listed = set_of(cmsgpack.unpack(value))
        local of_key = 'behind' .. string.sub(name, #'heads' + 1) .. ':' .. okey
        -- It may have others, whose leases have ended since.
        for member in pairs(expected[of_key] or {}) do
          if not listed[member] then breaks('leased behind others without being listed') end
        end
        expected[of_key] = nil
      end
    end
    compare(name, heads, true)
  elseif what == 'counts' then
    compare(name, pairs_of(call('HGETALL', key)), true)
  elseif what == 'due' or what == 'leased' or what == 'run_due' or what == 'run_leased' or what == 'open' or what == 'dead' then
    compare(name, pairs_of(call('ZRANGE', key, 0, -1, 'WITHSCORES')), true)
  end
end
for name in pairs(expected) do compare(name, {}, true) end

for n, rule in ipairs(broken) do broken[n] = rule .. ': ' .. counted[rule] end
return broken

-- Of an entry of `done`, up to `limit` messages that became final by it and still are. It has
-- numbers, each with how many of its run there are, or 0 for a message by itself.
local function of_entry(state, entry, limit)
  local at, numbers, found = tonumber(string.match(entry[1], '^%d+')), entry[2][2], {}
  local function look(key, seq)
    local s = key and #found < limit and load(key)
    if s and s.state == state and s.at == at and s.seq == seq then found[#found + 1] = s end
  end
  for place = 1, #numbers - 7, 8 do
    local seq, n = struct.unpack('>I6I2', numbers, place)
    if #found >= limit then break end
    if n == 0 then
      look(logged(seq), seq)
    else
      local entry_there = entry_of(seq)
      local first = entry_there and entry_there[seq]
      if first then
        for item = first, math.min(first + n - 1, #entry_there.items) do
          look(entry_there.items[item].key, entry_there.items[item].seq)
        end
      else
        local run = run_at(seq)
        for _, number in ipairs(run and numbers_of(run) or {}) do look(logged(number), number) end
      end
    end
  end
  return found
end

-- Up to `limit` messages that became final no later than `cutoff`, the longest-finished first.
local function finished_by(state, cutoff, limit)
  local found, from = {}, '-'
  while #found < limit do
    local entries = call('XRANGE', done[state], from, integer(cutoff), 'COUNT', 16)
    for _, entry in ipairs(entries) do
      for _, s in ipairs(of_entry(state, entry, limit - #found)) do found[#found + 1] = s end
      if #found >= limit then break end
    end
    if #entries < 16 then break end
    from = '(' .. entries[#entries][1]
  end
  return found
end

-- Drops the first entries of `done` as far as nothing of theirs is left: no fewer than one script
-- can empty, so that they do not pile up.
local function sweep(state)
  for _ = 1, 16 do
    local stale, list = {}, call('XRANGE', done[state], '-', '+', 'COUNT', 64)
    for n, entry in ipairs(list) do
      if #of_entry(state, entry, 1) > 0 then break end
      stale[n] = entry[1]
    end
    put('XDEL', done[state], stale)
    if #stale < 64 then break end
  end
end

local function static_of(s)
  local key, static, bytes = logged(s.seq)
  if key == s.key then return static, bytes end
end

-- The body of a message, if it still has one.
local function body_of(s)
  if not s.run then return call('HGET', body, s.key) end
  local parts = parts_of(s.run)
  local item = parts and parts[s.seq]
  return item and whole_of(parts, item)
end

-- What is forgotten leaves the log when nothing else of its entry is left.
local emptied = {}

local function unlog(seq, key)
  local entry = entry_of(seq)
  if entry and entry[seq] then
    entry.gone = entry.gone + 1
    emptied[entry.id] = entry
  else
    call('ZREM', late, key)
    call('HDEL', statics, key)
  end
end

local function trim_log()
  for id, entry in pairs(emptied) do
    local left = entry.gone < #entry.items
    if left then
      local keys = {}
      for n, item in ipairs(entry.items) do keys[n] = item.key end
      left = false
      for n, raw in ipairs(call('HMGET', ids, unpack(keys))) do
        local s = decode(keys[n], raw)
        if s and (s.seq == entry.items[n].seq or s.state == -1) then left = true end
      end
    end
    if not left then
      call('XDEL', log, id)
      entries[id], last_entry, first_logged = nil, nil, nil
    end
  end
  emptied = {}
end

-- Keys that are forgotten and did not belong to a whole run: other shards may point here for them.
local gone = {}

local function forget(s)
  local handler = handler_of(s.key)
  unfinish(s)
  count(handler, s.state, -1)
  call('HDEL', ids, s.key)
  call('HDEL', body, s.key)
  if s.flags % 2 == 1 then call('HDEL', errors, s.key) end
  if s.flags % 4 >= 2 then call('HDEL', results, s.key) end
  unlog(s.seq, s.key)
  gone[#gone + 1] = s.key
  states[s.key], dirty[s.key] = false, nil
  if s.flags >= BLOCKS then
    call('ZREM', handlers[handler].open, open_member(s))
    touch(handler, s.okey)
  end
end

-- Forgets many, runs that are all among them at once.
local function forget_all(list)
  local of_run = {}
  for _, s in ipairs(list) do
    if s.run then of_run[s.run] = (of_run[s.run] or 0) + 1 end
  end
  local keys = {}
  for _, s in ipairs(list) do
    if not s.run or of_run[s.run] ~= s.run.n then
      forget(own(s))
    else
      keys[#keys + 1] = s.key
      states[s.key] = false
      unlog(s.seq, s.key)
    end
  end
  put('HDEL', ids, keys)
  for run, n in pairs(of_run) do
    if n == run.n and not run.gone then
      count(run.handler, run.state, -n)
      remove_run(run)
    end
  end
  trim_log()
end

-- Deletes what has been processed for long enough.
local function trim(cutoff, limit)
  forget_all(finished_by(PROCESSED, cutoff, limit))
  sweep(PROCESSED)
end

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

-- Where it is kept up to which entry of a handler's stream payloads were dropped.
local function drop_field(state, handler)
  return 'dropped\0' .. state .. '\0' .. handler
end

-- The first entry of a handler's stream that may have payloads or results.
local function first_kept(state, handler)
  local reached = call('HGET', meta, drop_field(state, handler))
  return reached and '(' .. reached or '-'
end

local function has_content(s)
  if s.run then return not s.run.dropped end
  return s.bytes >= 0 or has_flag(s, HAS_RESULT)
end

-- The entries of a handler's stream up to `cutoff`, read a few at a time.
local FRONT = 16
local function front_of(stream, from, cutoff)
  local entries, place = call('XRANGE', stream, from, integer(cutoff), 'COUNT', FRONT), 0
  local front = {}
  function front.advance()
    place = place + 1
    if place > FRONT then
      entries, place = call('XRANGE', stream, '(' .. entries[FRONT][1], integer(cutoff), 'COUNT', FRONT), 1
    end
    front.entry = entries[place]
    front.at = front.entry and tonumber(string.match(front.entry[1], '^%d+'))
  end
  front.advance()
  return front
end

-- Up to `limit` messages of the call's handlers that became final no later than `cutoff`, the
-- longest-finished first; only those that have a payload or a result, if so asked.
local function finished_by(state, cutoff, limit, with_content)
  local found, fronts = {}, {}
  for handler, keys in pairs(handlers) do
    fronts[#fronts + 1] = front_of(keys.done[state], with_content and first_kept(state, handler) or '-', cutoff)
  end
  while #found < limit do
    local first
    for _, front in ipairs(fronts) do
      if front.at and (not first or front.at < first.at) then first = front end
    end
    if not first then break end
    local most = with_content and math.huge or limit - #found
    for _, s in ipairs(of_entry(state, first.entry, most)) do
      if #found < limit and (not with_content or has_content(s)) then found[#found + 1] = s end
    end
    first.advance()
  end
  return found
end

-- Drops the first entries of the handlers' streams as far as nothing of theirs is left: no fewer than
-- one script can empty, so that they do not pile up.
local function sweep(state)
  for handler, keys in pairs(handlers) do
    local stream = keys.done[state]
    for _ = 1, 16 do
      local stale, list = {}, call('XRANGE', stream, '-', '+', 'COUNT', 64)
      for n, entry in ipairs(list) do
        if #of_entry(state, entry, 1) > 0 then break end
        stale[n] = entry[1]
      end
      put('XDEL', stream, stale)
      if #stale < 64 then break end
    end
    -- A handler that has none left is not asked for again.
    for final, of_state in pairs(keys.done) do
      if not call('HGET', counts, handler .. '\0' .. final) then
        call('UNLINK', of_state)
        call('HDEL', meta, drop_field(final, handler))
      end
    end
  end
end

local function static_of(s)
  if has_flag(s, EDITED) then
    local edited = call('HGET', statics, s.key)
    if edited then return string.sub(edited, 5), (struct.unpack('>I4', edited)) end
  end
  local key, static, bytes = logged(s.seq)
  if key == s.key then return static, bytes end
end

-- What a copy of a known message is: 0 when its fingerprint, with which static parts begin, is the
-- same, 2 when it differs. Of what cannot be read nothing is said.
local FINGERPRINT = 8
local function duplicate(s, static)
  local known = s.state ~= -1 and static_of(s)
  return known and string.sub(known, 1, FINGERPRINT) ~= string.sub(static, 1, FINGERPRINT) and 2 or 0
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
  if has_flag(s, HAS_ERROR) or has_flag(s, HAS_HISTORY) then call('HDEL', errors, s.key, history_field(s.key)) end
  if has_flag(s, HAS_RESULT) then call('HDEL', results, s.key) end
  if has_flag(s, EDITED) then call('HDEL', statics, s.key) end
  unlog(s.seq, s.key)
  gone[#gone + 1] = s.key
  states[s.key], dirty[s.key] = false, nil
  if has_flag(s, BLOCKS) then
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

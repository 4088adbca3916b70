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

-- Entries and messages of the history that this script has looked at, and to how many one may look for
-- each purpose: more than one script empties, and some milliseconds' worth.
local looks, LOOKS = 0, 1500

-- Of an entry of `done`, up to `limit` messages that became final by it and still are; only those that
-- have a payload or a result, if so asked. It has numbers, each with how many of its run there are, or
-- 0 for a message by itself.
local function of_entry(state, entry, limit, with_content)
  local at, numbers, found = tonumber(string.match(entry[1], '^%d+')), entry[2][2], {}
  looks = looks + 1
  local function look(key, seq)
    looks = looks + 1
    local s = key and #found < limit and load(key)
    if s and s.state == state and s.at == at and s.seq == seq and (not with_content or has_content(s)) then
      found[#found + 1] = s
    end
  end
  for place = 1, #numbers - 7, 8 do
    local seq, n = struct.unpack('>I6I2', numbers, place)
    if #found >= limit then break end
    local run = n > 0 and with_content and run_at(seq)
    if run and run.dropped then
      -- A run's messages have no content of their own.
      looks = looks + 1
    elseif n == 0 then
      look(logged(seq), seq)
    else
      local entry_there = entry_of(seq)
      local first = entry_there and entry_there[seq]
      if first then
        for item = first, math.min(first + n - 1, #entry_there.items) do
          look(entry_there.items[item].key, entry_there.items[item].seq)
        end
      else
        run = run_at(seq)
        for _, number in ipairs(run and numbers_of(run) or {}) do look(logged(number), number) end
      end
    end
  end
  return found
end

-- How many entries of a handler's stream are read at first, of `most` at a time: where there are many handlers,
-- most are asked for one.
local MANY = 16
local function at_first(most)
  return tonumber(ARGV[7]) > MANY and 1 or most
end

-- The entries of a handler's stream up to `cutoff`, read a few at a time. There are none before the first
-- moment that a stream can name.
local FRONT = 16
local function front_of(stream, from, cutoff)
  local to, asked = integer(math.max(cutoff, 0)), at_first(FRONT)
  local entries, place = call('XRANGE', stream, from, to, 'COUNT', asked), 0
  local front = {}
  function front.advance()
    place = place + 1
    if place > asked then
      entries, place = call('XRANGE', stream, '(' .. entries[asked][1], to, 'COUNT', FRONT), 1
      asked = FRONT
    end
    front.entry = entries[place]
    front.at = front.entry and tonumber(string.match(front.entry[1], '^%d+'))
  end
  front.advance()
  return front
end

-- Fronts are kept in a heap, the one with the earliest entry first: there may be thousands of handlers.
local function sift_down(heap, place)
  while true do
    local first = place
    for child = 2 * place, 2 * place + 1 do
      if heap[child] and heap[child].at < heap[first].at then first = child end
    end
    if first == place then return end
    heap[place], heap[first] = heap[first], heap[place]
    place = first
  end
end

local function advance_first(heap)
  heap[1].advance()
  if not heap[1].at then
    heap[1] = heap[#heap]
    heap[#heap] = nil
  end
  if heap[1] then sift_down(heap, 1) end
end

-- Up to where these fronts have come, by handler.
local function reached_by(fronts)
  local reached = {}
  for _, front in ipairs(fronts) do
    if front.reached then
      reached[#reached + 1] = front.handler
      reached[#reached + 1] = front.reached
    end
  end
  return reached
end

-- Up to `limit` messages of the call's handlers that became final no later than `cutoff`, the
-- longest-finished first; only those that have a payload or a result, if so asked. `behind` has, by
-- handler, the entry up to which an earlier call has looked. Stops after so many looks or so much work, and then
-- answers also up to where it has looked; and in any case the handlers whose first entry means nothing.
local function finished_by(state, cutoff, limit, with_content, behind, most_looks)
  local found, fronts, heap, spent = {}, {}, {}, {}
  for handler, keys in pairs(handlers) do
    local from = behind[handler] and '(' .. behind[handler] or with_content and first_kept(state, handler) or '-'
    local front = front_of(keys.done[state], from, cutoff)
    front.handler, front.is_first, front.reached = handler, not behind[handler], behind[handler]
    fronts[#fronts + 1] = front
    if front.at then heap[#heap + 1] = front end
  end
  for place = math.floor(#heap / 2), 1, -1 do sift_down(heap, place) end
  while #found < limit and heap[1] do
    if looks >= most_looks or worked >= MOST_WORK then return found, spent, reached_by(fronts) end
    local first = heap[1]
    local of_first = of_entry(state, first.entry, limit - #found, with_content)
    for _, s in ipairs(of_first) do found[#found + 1] = s end
    if first.is_first and #of_first == 0 then spent[#spent + 1] = first.handler end
    first.is_first, first.reached = false, first.entry[1]
    advance_first(heap)
  end
  return found, spent
end

-- Drops the first entries of the handlers' streams as far as nothing of theirs is left, until so many looks
-- have gone into that, or too much work: of its own, so that it gets on however much there was to do before. Answers
-- the handlers of which there may be more.
local function sweep(state, most)
  local spent, is_cut, unswept, done_before = 0, false, {}, worked
  for handler, keys in pairs(handlers) do
    local stream, asked, stale, is_full = keys.done[state], at_first(64), nil, nil
    repeat
      stale = {}
      for n, entry in ipairs(call('XRANGE', stream, '-', '+', 'COUNT', asked)) do
        local before = looks
        is_cut = is_cut or spent >= most or worked - done_before >= MOST_WORK
        if is_cut or #of_entry(state, entry, 1) > 0 then break end
        stale[n], spent = entry[1], spent + looks - before
      end
      put('XDEL', stream, stale)
      is_full, asked = #stale == asked, 64
    until not is_full
    if is_cut then unswept[#unswept + 1] = handler end
    -- A handler that has none left is not asked for again.
    for final, of_state in pairs(keys.done) do
      if not call('HGET', counts, handler .. '\0' .. final) then
        call('UNLINK', of_state)
        call('HDEL', meta, drop_field(final, handler))
      end
    end
  end
  return unswept
end

-- Moves the marks of the handlers' streams up to the first entry with a payload or a result, until so many
-- looks have gone into that, or too much work of its own. Answers the handlers whose marks may be moved further.
local function mark_dropped(state, cutoff, most)
  local spent, is_cut, unmarked, done_before = 0, false, {}, worked
  for handler, keys in pairs(handlers) do
    local front, reached = front_of(keys.done[state], first_kept(state, handler), cutoff), nil
    while front.entry do
      local before = looks
      is_cut = is_cut or spent >= most or worked - done_before >= MOST_WORK
      if is_cut or #of_entry(state, front.entry, 1, true) > 0 then break end
      reached, spent = front.entry[1], spent + looks - before
      front.advance()
    end
    if reached then call('HSET', meta, drop_field(state, handler), reached) end
    if is_cut then unmarked[#unmarked + 1] = handler end
  end
  return unmarked
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
    if not emptied[entry.id] then worked = worked + 3 * #entry.items end
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
      for _, item in ipairs(entry.items) do entry_with[item.seq] = nil end
      entries[id], first_logged = nil, nil
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

-- Of messages that something is done to, those that this script has the time for, and the keys of the others. Those of
-- a run stay together, and the run in one piece if they are all of it. `is_logged`: whether their entries of the log
-- are needed.
local function share_of(list, is_logged)
  local of_run, is_mine, is_read, expected = {}, {}, {}, 0
  local function expect(s)
    local entry = is_logged and entry_of(s.seq)
    if entry and not is_read[entry] then
      is_read[entry], expected = true, expected + 3 * #entry.items
    end
    if s.run and of_run[s.run] ~= s.run.n then expected = expected + work_of(s.run) end
  end
  for _, s in ipairs(list) do
    if s.run then of_run[s.run] = (of_run[s.run] or 0) + 1 end
  end
  local share, left = {}, {}
  for _, s in ipairs(list) do
    local unit = s.run or s
    if is_mine[unit] == nil then
      is_mine[unit] = worked + expected < MOST_WORK
      if is_mine[unit] then expect(s) end
    end
    if is_mine[unit] then share[#share + 1] = s else left[#left + 1] = s.key end
  end
  return share, left
end

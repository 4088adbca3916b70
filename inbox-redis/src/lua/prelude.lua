-- What every script begins with. KEYS: the eighteen of the shard, then six for each handler.
-- ARGV: version, shards, shard, microseconds to add to the clock, the moment that all shards are to
-- take for now if it has just been (0: each its own), channel, handlers, their names.
local meta, ids, log, body, errors, results, counts, dead = unpack(KEYS, 1, 8)
local done = {[2] = KEYS[9], [3] = KEYS[10], [4] = KEYS[11]}
local late, statics, fences, runs, blobs, staged, staging = unpack(KEYS, 12, 18)
local PENDING, LEASED, PROCESSED, DEAD, DISCARDED, GUARD = 0, 1, 2, 3, 4, 9
local HAS_ERROR, HAS_RESULT, BLOCKS = 1, 2, 4
local call = redis.call

local marker = call('HMGET', meta, 'version', 'shards', 'shard', 'finished_at')
if not marker[1] then
  return redis.error_reply('INBOXMISSING ' .. call('EXISTS', ids, log))
end
if marker[1] ~= ARGV[1] or marker[2] ~= ARGV[2] or marker[3] ~= ARGV[3] then
  return redis.error_reply('INBOXVERSION ' .. marker[1] .. ' ' .. tostring(marker[2]) .. ' ' .. tostring(marker[3]))
end
local clock = call('TIME')
local time, moment = clock[1] * 1000000 + clock[2], tonumber(ARGV[5])
local now = time + ARGV[4]
if moment > time - 1000000 and moment < time then now = moment + ARGV[4] end
local handlers, arg = {}, 8 + ARGV[7]
for n = 1, tonumber(ARGV[7]) do
  local at = 18 + (n - 1) * 6
  handlers[ARGV[7 + n]] = {due = KEYS[at + 1], leased = KEYS[at + 2], open = KEYS[at + 3], heads = KEYS[at + 4],
    run_due = KEYS[at + 5], run_leased = KEYS[at + 6]}
end

local function handler_of(key)
  return string.sub(key, 1, string.find(key, '\0', 1, true) - 1)
end

-- Numbers as Redis reads them. The same one is often asked for again.
local last_number, last_text
local function integer(number)
  if number ~= last_number then
    last_number, last_text = number, string.format('%.0f', number)
  end
  return last_text
end

-- A message's place among the claimable: its number first, so that equal times are in order.
local function member_of(s)
  if not s.member then s.member = struct.pack('>I6', s.seq) .. s.key end
  return s.member
end

-- Runs: messages that were received together and have had the same fate since. They share one
-- record in `runs`, whose score is the first one's number, one body in `blobs` and one place among
-- the claimable. A message of a run has nothing of its own but its key and number in `ids`.
local runs_known, last_run = {}, nil
local RUN = 114 -- 'r': no state begins so

local function run_of_raw(raw)
  local ok, base, n, last, origin, state, accepted, due, token, at, started, finished, dropped, worker, handler, offsets, bytes_held = pcall(cmsgpack.unpack, raw)
  if not ok or type(bytes_held) ~= 'number' then return nil end
  if runs_known[base] == nil then
    runs_known[base] = {base = base, n = n, last = last, origin = origin, state = state, accepted = accepted, due = due, token = token,
      at = at, started = started, finished = finished, dropped = dropped, worker = worker, handler = handler, offsets = offsets,
      bytes_held = bytes_held, raw = raw, replays = 0, flags = 0}
  end
  return runs_known[base] or nil
end

local function run_at(base)
  if runs_known[base] == nil then
    local text = integer(base)
    local raw = call('ZRANGEBYSCORE', runs, text, text)[1]
    if raw then run_of_raw(raw) end
  end
  return runs_known[base] or nil
end

-- Whether a number is one of a run's: all from its first to its last are, but for a part of a batch
-- of which other shards have some.
local function is_in(run, seq)
  if seq < run.base or seq > run.last then return false end
  if run.offsets == '' then return true end
  if not run.members or run.members_of ~= run.n then
    run.members, run.members_of = {}, run.n
    for n = 1, run.n do run.members[run.origin + struct.unpack('>I2', run.offsets, 2 * n - 1)] = true end
  end
  return run.members[seq] or false
end

-- The run that a number belongs to. The numbers of two runs never interleave.
local function run_of(seq)
  if last_run and not last_run.gone and is_in(last_run, seq) then return last_run end
  local raw = call('ZREVRANGEBYSCORE', runs, integer(seq), '-inf', 'LIMIT', 0, 1)[1]
  local run = raw and run_of_raw(raw)
  if not run or not is_in(run, seq) then return nil end
  last_run = run
  return run
end

local function save_run(run)
  if run.raw then call('ZREM', runs, run.raw) end
  run.raw = cmsgpack.pack(run.base, run.n, run.last, run.origin, run.state, run.accepted, run.due, run.token, run.at, run.started,
    run.finished, run.dropped, run.worker, run.handler, run.offsets, run.bytes_held)
  call('ZADD', runs, integer(run.base), run.raw)
  runs_known[run.base] = run
end

local function remove_run(run)
  call('ZREM', runs, run.raw)
  if not run.dropped then call('HDEL', blobs, integer(run.base)) end
  run.gone = true
  runs_known[run.base] = false
end

local function index_run(run, set, score)
  local member = struct.pack('>I6', run.base)
  if score then
    call('ZADD', handlers[run.handler][set], integer(score), member)
  else
    call('ZREM', handlers[run.handler][set], member)
  end
end

-- Of a set of runs, the first that are claimable: as many as have so many messages.
local function claimable_runs(set, limit)
  local found, messages, from = {}, 0, 0
  while messages < limit do
    local list = call('ZRANGEBYSCORE', set, '-inf', integer(now), 'WITHSCORES', 'LIMIT', from, 4)
    for n = 1, #list, 2 do
      local run = run_at((struct.unpack('>I6', list[n])))
      messages = messages + (run and run.n or 0)
      found[#found + 1] = {at = tonumber(list[n + 1]), member = list[n], run = run}
      if messages >= limit then break end
    end
    if #list < 8 then break end
    from = from + 4
  end
  return found, messages
end

-- The numbers of a run's messages: without gaps, or as distances from its origin.
local function numbers_of(run)
  local numbers = {}
  for n = 1, run.n do
    if run.offsets == '' then
      numbers[n] = run.base + n - 1
    else
      numbers[n] = run.origin + struct.unpack('>I2', run.offsets, 2 * n - 1)
    end
  end
  return numbers
end

-- Takes apart what many messages have in one string: for each the distance of its number, its key,
-- its static part and its payload's length; in `blobs` also the payload.
local function items_of(packed, origin, bodies)
  local function parse()
    local list, at = {}, 1
    while at <= #packed do
      local item, distance, length = {from = at}, nil, nil
      distance, length, at = struct.unpack('>I2I2', packed, at)
      item.seq, item.key, at = origin + distance, string.sub(packed, at, at + length - 1), at + length
      length, at = struct.unpack('>I4', packed, at)
      item.static, at = string.sub(packed, at, at + length - 1), at + length
      item.bytes, at = struct.unpack('>I4', packed, at)
      if bodies then
        item.payload, at = at, at + item.bytes
      end
      item.to = at - 1
      list[#list + 1] = item
    end
    return list
  end
  local ok, list = pcall(parse)
  return ok and list or nil
end

-- The parts of a run's blob by key, or nil when there is none that can be read.
local function parts_of(run)
  if run.parts == nil then
    run.parts = false
    local blob = run.blob or not run.dropped and call('HGET', blobs, integer(run.base))
    local items = blob and items_of(blob, run.origin, true)
    if items and #items == run.n then
      run.parts = {blob = blob, items = items}
      for _, item in ipairs(items) do run.parts[item.seq] = item end
    end
  end
  return run.parts or nil
end

local function whole_of(parts, item)
  return struct.pack('>I4', #item.static) .. item.static .. string.sub(parts.blob, item.payload, item.payload + item.bytes - 1)
end

local function decode(key, raw)
  if not raw then return nil end
  if string.byte(raw) == RUN then
    local seq = #raw == 7 and struct.unpack('>I6', raw, 2)
    local run = seq and run_of(seq)
    if not run then return {key = key, state = -1} end
    -- Whatever becomes of the run shows.
    return setmetatable({key = key, seq = seq, run = run}, {__index = run})
  end
  local ok, state, seq, accepted, due, token, at, started, finished, replays, bytes, flags, worker, okey, home, guard = pcall(cmsgpack.unpack, raw)
  if not ok or type(state) ~= 'number' or type(seq) ~= 'number' then return {key = key, state = -1} end
  if state == GUARD then return {key = key, state = GUARD, shard = seq, guard = accepted} end
  if type(worker) ~= 'string' then return {key = key, state = -1} end
  return {key = key, state = state, seq = seq, accepted = accepted, due = accepted + due, token = token and accepted + token or 0,
    at = accepted + at, started = started, finished = finished, replays = replays, bytes = bytes, flags = flags, worker = worker,
    okey = okey or nil, home = home, guard = guard}
end

local function encode(s)
  local token = s.token ~= 0 and s.token - s.accepted
  if s.guard then
    return cmsgpack.pack(s.state, s.seq, s.accepted, s.due - s.accepted, token, s.at - s.accepted, s.started, s.finished, s.replays, s.bytes, s.flags, s.worker, s.okey or false, s.home, s.guard)
  elseif s.okey then
    return cmsgpack.pack(s.state, s.seq, s.accepted, s.due - s.accepted, token, s.at - s.accepted, s.started, s.finished, s.replays, s.bytes, s.flags, s.worker, s.okey)
  end
  return cmsgpack.pack(s.state, s.seq, s.accepted, s.due - s.accepted, token, s.at - s.accepted, s.started, s.finished, s.replays, s.bytes, s.flags, s.worker)
end

-- Every state that a script looks at is read once and written once.
local states, dirty = {}, {}

local function load_all(keys)
  for first = 1, #keys, 500 do
    local last = math.min(first + 499, #keys)
    local raw = call('HMGET', ids, unpack(keys, first, last))
    for n = first, last do
      if states[keys[n]] == nil then states[keys[n]] = decode(keys[n], raw[n - first + 1]) or false end
    end
  end
end

local function load(key)
  if states[key] == nil then states[key] = decode(key, call('HGET', ids, key)) or false end
  return states[key] or nil
end

local function save(s)
  states[s.key] = s
  dirty[s.key] = true
end

local changes, touched, wake, quiet = {}, {}, {}, false

local function count(handler, state, by)
  local of_handler = changes[handler]
  if not of_handler then
    of_handler = {}
    changes[handler] = of_handler
  end
  of_handler[state] = (of_handler[state] or 0) + by
end

local function put(command, key, list)
  for first = 1, #list, 1000 do
    call(command, key, unpack(list, first, math.min(first + 999, #list)))
  end
end

-- What becomes claimable or stops being so, written in one command for each handler.
local moves = {}

local function move(handler, set, add, s, score)
  local key = handlers[handler][set]
  local list = moves[key] or {add = {}, remove = {}}
  moves[key] = list
  local into = add and list.add or list.remove
  if add then into[#into + 1] = score end
  into[#into + 1] = member_of(s)
end

local function move_all()
  for key, list in pairs(moves) do
    put('ZREM', key, list.remove)
    put('ZADD', key, list.add)
  end
  moves = {}
end

local function save_all()
  local fields = {}
  for key in pairs(dirty) do
    fields[#fields + 1] = key
    fields[#fields + 1] = encode(states[key])
  end
  dirty = {}
  put('HSET', ids, fields)
end

local function waiting(handler, s)
  move(handler, 'due', true, s, integer(s.due))
  if s.due <= now then wake[handler] = true end
end

local function touch(handler, okey)
  local keys = touched[handler] or {}
  touched[handler] = keys
  keys[okey] = true
end

local function open_member(s)
  return s.okey .. '\0' .. member_of(s)
end

-- Of an ordering key's open messages, the one that is leased is the head, else the earliest.
local function rehead(handler, okey)
  local keys = handlers[handler]
  local current = call('HGET', keys.heads, okey)
  local held = current and load(string.sub(current, 7))
  if held and held.state == LEASED then return end
  local first = call('ZRANGEBYLEX', keys.open, '[' .. okey .. '\0', '(' .. okey .. '\1', 'LIMIT', 0, 1)[1]
  local head = first and string.sub(first, #okey + 2)
  if current and current ~= head then call('ZREM', keys.due, current) end
  if not head then
    if current then call('HDEL', keys.heads, okey) end
    return
  end
  if current ~= head then call('HSET', keys.heads, okey, head) end
  local s = load(string.sub(head, 7))
  if s and s.state == PENDING then
    call('ZADD', keys.due, s.due, head)
    if s.due <= now then wake[handler] = true end
  end
end

local finished_at
local finishing = {}

-- What becomes final in one script does so at one moment, which names its entry in the stream of
-- its state and is later than all before.
local function finish(s, state)
  finished_at = finished_at or math.max(now, (tonumber(marker[4]) or 0) + 1)
  s.state, s.at = state, finished_at
  local list = finishing[state] or {}
  finishing[state] = list
  list[#list + 1] = struct.pack('>I6I2', s.seq, 0)
  if state == DEAD then call('ZADD', dead, s.seq, s.key) end
end

local function finish_run(run)
  finished_at = finished_at or math.max(now, (tonumber(marker[4]) or 0) + 1)
  run.state, run.at = PROCESSED, finished_at
  local list = finishing[PROCESSED] or {}
  finishing[PROCESSED] = list
  list[#list + 1] = struct.pack('>I6I2', run.base, run.n)
end

-- Takes a final state back. Its number stays in the stream, where it means nothing any more.
local function unfinish(s)
  if s.state == DEAD then call('ZREM', dead, s.key) end
end

-- An entry of the log, as what it says of every message. Those that were purged are still in it.
-- Its number is its first message's, and none of its messages is further from that than SPAN.
-- With several shards, messages that came by themselves can be in between.
local entries, last_entry, SPAN = {}, nil, 1000

local function entry_items(entry)
  local id = entry[1]
  if not entries[id] then
    local items = items_of(entry[2][4], tonumber(entry[2][2]), false)
    if not items or #items == 0 then return nil end
    entries[id] = {id = id, items = items, first = items[1].seq, last = items[#items].seq, gone = 0}
    for n, item in ipairs(items) do entries[id][item.seq] = n end
  end
  return entries[id]
end

local function entry_of(seq)
  if last_entry and last_entry[seq] then return last_entry end
  local to, step = integer(seq), 1
  while true do
    local list = call('XREVRANGE', log, to, integer(math.max(seq - SPAN, 0)), 'COUNT', step)
    for _, raw in ipairs(list) do
      local entry = entry_items(raw)
      if entry and entry[seq] then
        last_entry = entry
        return entry
      end
    end
    if ARGV[2] == '1' or #list < step then return nil end
    to, step = '(' .. list[#list][1], 16
  end
end

-- Answers whether it could be added: another shard's part of a later batch may have been quicker,
-- and a stream only grows at its end.
local function log_add(first, origin, packed)
  local added = redis.pcall('XADD', log, integer(first), 'o', integer(origin), 'p', packed)
  return not (type(added) == 'table' and added.err)
end

local function log_one(s, static)
  local packed = struct.pack('>I2I2', 0, #s.key) .. s.key .. struct.pack('>I4', #static) .. static .. struct.pack('>I4', math.max(s.bytes, 0))
  if not log_add(s.seq, s.seq, packed) then
    call('ZADD', late, integer(s.seq), s.key)
    call('HSET', statics, s.key, struct.pack('>I4', math.max(s.bytes, 0)) .. static)
  end
end

-- Key, static part and the payload's length as it was received, of a number.
local function logged(seq)
  local entry = entry_of(seq)
  local item = entry and entry[seq] and entry.items[entry[seq]]
  if item then return item.key, item.static, item.bytes end
  local text = integer(seq)
  local key = call('ZRANGEBYSCORE', late, text, text)[1]
  local found = key and call('HGET', statics, key)
  if found and #found >= 4 then return key, string.sub(found, 5), (struct.unpack('>I4', found)) end
end

-- Takes a run apart into messages with a state of their own each, as if they had always had one.
local function take_apart(run)
  local parts, set = parts_of(run), nil
  if run.state == PENDING then set = 'due' elseif run.state == LEASED then set = 'leased' end
  local fields, bodies, scores = {}, {}, {}
  for n, seq in ipairs(numbers_of(run)) do
    local item = parts and parts[seq]
    local key, _, bytes = nil, nil, nil
    if item then key, bytes = item.key, item.bytes else key, _, bytes = logged(seq) end
    if key then
      local s = {key = key, state = run.state, seq = seq, accepted = run.accepted, due = run.due, token = run.token, at = run.at,
        started = run.started, finished = run.finished, replays = 0, bytes = run.dropped and -1 or bytes, flags = 0, worker = run.worker}
      states[key] = s
      fields[#fields + 1] = key
      fields[#fields + 1] = encode(s)
      if item then
        bodies[#bodies + 1] = key
        bodies[#bodies + 1] = whole_of(parts, item)
      end
      if set then
        scores[#scores + 1] = integer(set == 'due' and s.due or s.at)
        scores[#scores + 1] = member_of(s)
      end
    end
  end
  put('HSET', ids, fields)
  put('HSET', body, bodies)
  if set then
    put('ZADD', handlers[run.handler][set], scores)
    index_run(run, 'run_' .. set)
  end
  remove_run(run)
end

-- The same message with a state of its own, for what changes it alone.
local function own(s)
  if s.run and not s.run.gone then take_apart(s.run) end
  return states[s.key]
end

-- Of numbers and tokens of leases, the runs whose messages are all among them, each once.
local function whole_runs(list)
  local found, whole = {}, {}
  for _, one in ipairs(list) do
    local run = run_of(one.seq)
    if run and run.state == LEASED and run.token == one.token then
      local of_run = found[run] or {n = 0}
      found[run] = of_run
      if of_run[one.seq] or one.alone then of_run.n = -run.n end
      of_run[one.seq] = true
      of_run.n = of_run.n + 1
      one.run = run
    end
  end
  for run, of_run in pairs(found) do
    if of_run.n == run.n then whole[run] = true end
  end
  return whole
end

-- Keeps the first messages of a pending or leased run, whose blob was loaded, in it, and makes a run
-- of the others. Answers whether the blob could be cut.
local function cut_run(run, keep)
  local blob, set = run.blob, run.state == PENDING and 'run_due' or 'run_leased'
  local function find()
    local at, length = 1, nil
    for _ = 1, keep do
      length = struct.unpack('>I2', blob, at + 2)
      at = at + 4 + length
      length = struct.unpack('>I4', blob, at)
      at = at + 4 + length
      length = struct.unpack('>I4', blob, at)
      at = at + 4 + length
    end
    return at
  end
  local ok, at = pcall(find)
  if not ok or at > #blob then return false end
  local numbers = numbers_of(run)
  local rest = {base = numbers[keep + 1], n = run.n - keep, last = run.last, origin = run.origin, state = run.state,
    accepted = run.accepted, due = run.due, token = run.token, at = run.at, started = run.started, finished = run.finished,
    dropped = false, worker = run.worker, handler = run.handler, offsets = string.sub(run.offsets, 2 * keep + 1), replays = 0,
    flags = 0, bytes_held = #blob - at + 1}
  run.n, run.last, run.offsets, run.bytes_held = keep, numbers[keep], string.sub(run.offsets, 1, 2 * keep), at - 1
  run.parts, run.blob = nil, string.sub(blob, 1, at - 1)
  call('HSET', blobs, integer(rest.base), string.sub(blob, at), integer(run.base), run.blob)
  save_run(run)
  save_run(rest)
  index_run(rest, set, set == 'run_due' and rest.due or rest.at)
  return true
end

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

-- Drops the first entries of `done` as far as nothing of theirs is left.
local function sweep(state)
  for _, entry in ipairs(call('XRANGE', done[state], '-', '+', 'COUNT', 16)) do
    if #of_entry(state, entry, 1) > 0 then break end
    call('XDEL', done[state], entry[1])
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
      entries[id], last_entry = nil, nil
    end
  end
  emptied = {}
end

local function forget(s)
  local handler = handler_of(s.key)
  unfinish(s)
  count(handler, s.state, -1)
  call('HDEL', ids, s.key)
  call('HDEL', body, s.key)
  if s.flags % 2 == 1 then call('HDEL', errors, s.key) end
  if s.flags % 4 >= 2 then call('HDEL', results, s.key) end
  unlog(s.seq, s.key)
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

-- Deletes what has been processed for long enough. Answers those that have a guard elsewhere.
local function trim(cutoff, limit, guards)
  local list = finished_by(PROCESSED, cutoff, limit)
  forget_all(list)
  for _, s in ipairs(list) do
    if s.guard then guards[#guards + 1] = {s.key, s.home, s.guard} end
  end
  sweep(PROCESSED)
end

-- Writes all that is still in memory: the last thing that a writing script does.
local function write()
  save_all()
  move_all()
  for handler, keys in pairs(touched) do
    for okey in pairs(keys) do rehead(handler, okey) end
  end
  for handler, of_handler in pairs(changes) do
    for state, by in pairs(of_handler) do
      local field = handler .. '\0' .. state
      if by ~= 0 and call('HINCRBY', counts, field, by) <= 0 then call('HDEL', counts, field) end
    end
  end
  for state, seqs in pairs(finishing) do
    call('XADD', done[state], integer(finished_at), 's', table.concat(seqs))
  end
  if finished_at then call('HSET', meta, 'finished_at', integer(finished_at)) end
  if not quiet then
    for handler in pairs(wake) do call('PUBLISH', ARGV[6] .. handler, '') end
  end
  changes, touched, wake, finishing = {}, {}, {}, {}
end

local function set_flag(s, flag, on)
  local has = math.floor(s.flags / flag) % 2 == 1
  if on and not has then s.flags = s.flags + flag end
  if not on and has then s.flags = s.flags - flag end
end

local function static_part(whole)
  return string.sub(whole, 5, 4 + struct.unpack('>I4', whole))
end

local function resolve(due)
  local kind, number = string.sub(due, 1, 1), tonumber(string.sub(due, 2)) or 0
  if kind == '+' then return now + number end
  return math.max(number, now)
end

-- Stores a message that is not known. Answers its state.
local function insert(key, seq, due, okey, whole, home, guard)
  local static = static_part(whole)
  local s = {key = key, state = PENDING, seq = seq, accepted = now, due = resolve(due), token = 0, at = now,
    started = 0, finished = 0, replays = 0, bytes = #whole - 4 - #static, flags = 0, worker = '',
    okey = okey ~= '' and okey or nil, home = home, guard = guard}
  local handler = handler_of(key)
  log_one(s, static)
  count(handler, PENDING, 1)
  save(s)
  if s.okey then
    call('ZADD', handlers[handler].open, 0, open_member(s))
    touch(handler, s.okey)
  else
    waiting(handler, s)
  end
  return s
end

local function lease(s, handler, length, worker)
  count(handler, s.state, -1)
  count(handler, LEASED, 1)
  s.state, s.at = LEASED, now + length
  s.token = math.max(s.token + 1, now)
  s.started = s.started + 1
  s.worker = worker
  save(s)
end

local function row(s, static, err, bytes)
  if s.state == -1 then return {s.key, -1} end
  if s.run then bytes = s.dropped and -1 or bytes else bytes = s.bytes end
  return {s.key, s.state, s.seq, s.accepted, s.due, s.token, s.at, s.started, s.finished, s.replays, bytes or -1, s.flags, s.worker,
    s.okey or false, static or false, err or false, s.home or -1, s.guard or 0}
end

local function full_row(s)
  if s.state == -1 or s.state == GUARD then return {s.key, -1} end
  local static, bytes = static_of(s)
  return row(s, static, s.flags % 2 == 1 and call('HGET', errors, s.key), bytes)
end

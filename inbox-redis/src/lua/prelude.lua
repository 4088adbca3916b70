-- What every script begins with. KEYS: the fourteen of the shard, then four for each handler.
-- ARGV: version, shards, shard, microseconds to add to the clock, the moment that all shards are to
-- take for now if it has just been (0: each its own), channel, handlers, their names.
local meta, ids, log, body, errors, results, counts, dead = unpack(KEYS, 1, 8)
local done = {[2] = KEYS[9], [3] = KEYS[10], [4] = KEYS[11]}
local late, statics, fences = unpack(KEYS, 12, 14)
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
if moment > time - 50000 and moment < time then now = moment + ARGV[4] end
local handlers, arg = {}, 8 + ARGV[7]
for n = 1, tonumber(ARGV[7]) do
  local at = 14 + (n - 1) * 4
  handlers[ARGV[7 + n]] = {due = KEYS[at + 1], leased = KEYS[at + 2], open = KEYS[at + 3], heads = KEYS[at + 4]}
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

local function decode(key, raw)
  if not raw then return nil end
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
  list[#list + 1] = struct.pack('>I6', s.seq)
  if state == DEAD then call('ZADD', dead, s.seq, s.key) end
end

-- Takes a final state back. Its number stays in the stream, where it means nothing any more.
local function unfinish(s)
  if s.state == DEAD then call('ZREM', dead, s.key) end
end

local function log_add(s, static)
  local seq = integer(s.seq)
  local added = redis.pcall('XADD', log, seq, 'k', s.key, 's', static)
  if type(added) == 'table' and added.err then
    -- Another shard's part of a later batch was quicker: a stream only grows at its end.
    call('ZADD', late, s.seq, s.key)
    call('HSET', statics, s.key, static)
  end
end

local function logged(seq)
  seq = integer(seq)
  local entry = call('XRANGE', log, seq, seq, 'COUNT', 1)[1]
  if entry then return entry[2][2], entry[2][4] end
  local key = call('ZRANGEBYSCORE', late, seq, seq)[1]
  if key then return key, call('HGET', statics, key) end
end

-- Of the numbers in an entry of `done`, the messages that became final by it and still are.
local function of_entry(state, entry)
  local at, numbers, found = tonumber(string.match(entry[1], '^%d+')), entry[2][2], {}
  for place = 1, #numbers - 5, 6 do
    local seq = struct.unpack('>I6', numbers, place)
    local key = logged(seq)
    local s = key and load(key)
    if s and s.state == state and s.at == at and s.seq == seq then found[#found + 1] = s end
  end
  return found
end

-- Up to `limit` messages that became final no later than `cutoff`, the longest-finished first.
local function finished_by(state, cutoff, limit)
  local found, from = {}, '-'
  while #found < limit do
    local entries = call('XRANGE', done[state], from, integer(cutoff), 'COUNT', 16)
    for _, entry in ipairs(entries) do
      for _, s in ipairs(of_entry(state, entry)) do
        if #found < limit then found[#found + 1] = s end
      end
    end
    if #entries < 16 then break end
    from = '(' .. entries[#entries][1]
  end
  return found
end

-- Drops the first entries of `done` as far as nothing of theirs is left.
local function sweep(state)
  for _, entry in ipairs(call('XRANGE', done[state], '-', '+', 'COUNT', 16)) do
    if #of_entry(state, entry) > 0 then break end
    call('XDEL', done[state], entry[1])
  end
end

local function static_of(s)
  local key, static = logged(s.seq)
  if key == s.key then return static end
  return call('HGET', statics, s.key)
end

local function forget(s)
  local handler = handler_of(s.key)
  unfinish(s)
  count(handler, s.state, -1)
  call('HDEL', ids, s.key)
  call('HDEL', body, s.key)
  if s.flags % 2 == 1 then call('HDEL', errors, s.key) end
  if s.flags % 4 >= 2 then call('HDEL', results, s.key) end
  if call('XDEL', log, integer(s.seq)) == 0 then
    call('ZREM', late, s.key)
    call('HDEL', statics, s.key)
  end
  states[s.key], dirty[s.key] = false, nil
  if s.flags >= BLOCKS then
    call('ZREM', handlers[handler].open, open_member(s))
    touch(handler, s.okey)
  end
end

-- Deletes what has been processed for long enough. Answers those that have a guard elsewhere.
local function trim(cutoff, limit, guards)
  for _, s in ipairs(finished_by(PROCESSED, cutoff, limit)) do
    forget(s)
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
  log_add(s, static)
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

local function row(s, static, err)
  if s.state == -1 then return {s.key, -1} end
  return {s.key, s.state, s.seq, s.accepted, s.due, s.token, s.at, s.started, s.finished, s.replays, s.bytes, s.flags, s.worker,
    s.okey or false, static or false, err or false, s.home or -1, s.guard or 0}
end

local function full_row(s)
  if s.state == -1 or s.state == GUARD then return {s.key, -1} end
  return row(s, static_of(s), s.flags % 2 == 1 and call('HGET', errors, s.key))
end

-- A message's own state, and what follows from it: counts, places among the claimable, heads of
-- ordering keys. `leased`: when its last attempt was leased, or false. It is kept as its distance from the
-- token of that lease, which mostly is the same number.

local function decode(key, raw)
  if not raw then return nil end
  if string.byte(raw) == RUN then
    local seq = #raw == 7 and struct.unpack('>I6', raw, 2)
    local run = seq and run_of(seq)
    if not run then return {key = key, state = -1} end
    -- Whatever becomes of the run shows.
    return setmetatable({key = key, seq = seq, run = run}, {__index = run})
  end
  local ok, state, seq, accepted, due, token, leased, at, started, finished, replays, bytes, flags, worker, okey = pcall(cmsgpack.unpack, raw)
  if not ok or type(state) ~= 'number' or type(seq) ~= 'number' then return {key = key, state = -1} end
  if type(worker) ~= 'string' then return {key = key, state = -1} end
  token = token and accepted + token or 0
  return {key = key, state = state, seq = seq, accepted = accepted, due = accepted + due, token = token,
    leased = leased and token - leased, at = accepted + at, started = started, finished = finished, replays = replays, bytes = bytes, flags = flags, worker = worker,
    okey = okey or nil}
end

local function encode(s)
  local token, leased = s.token ~= 0 and s.token - s.accepted, s.leased and s.token - s.leased
  if s.okey then
    return cmsgpack.pack(s.state, s.seq, s.accepted, s.due - s.accepted, token, leased, s.at - s.accepted, s.started, s.finished, s.replays, s.bytes, s.flags, s.worker, s.okey)
  end
  return cmsgpack.pack(s.state, s.seq, s.accepted, s.due - s.accepted, token, leased, s.at - s.accepted, s.started, s.finished, s.replays, s.bytes, s.flags, s.worker)
end

-- Where `errors` has what became of earlier attempts: a line of JSON each. No key ends so.
local function history_field(key)
  return key .. '\0'
end

local function history_of(s)
  return s and s.flags and has_flag(s, HAS_HISTORY) and call('HGET', errors, history_field(s.key))
end

-- The history with another line, which says that it is there, and without the oldest of more than `kept`.
local function with_entry(s, line, kept)
  local before = history_of(s)
  set_flag(s, HAS_HISTORY, true)
  if not before then return line end
  local _, breaks = string.gsub(before, '\n', '')
  for _ = kept, breaks + 1 do before = string.sub(before, string.find(before, '\n', 1, true) + 1) end
  return before .. '\n' .. line
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

-- Of several moves of a message the last one counts.
local function move(handler, set, add, s, score)
  local key = handlers[handler][set]
  local list = moves[key] or {}
  moves[key] = list
  list[member_of(s)] = add and score
end

local function move_all()
  for key, list in pairs(moves) do
    local added, removed = {}, {}
    for member, score in pairs(list) do
      if score then
        added[#added + 1] = score
        added[#added + 1] = member
      else
        removed[#removed + 1] = member
      end
    end
    put('ZREM', key, removed)
    put('ZADD', key, added)
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

-- Whether a worker has its lease, which may have run out.
local function is_held(s)
  return s.state == LEASED and s.worker ~= ''
end

-- Where `heads` has which messages were leased behind the head of an ordering key, in order. All that still are
-- are among them. No ordering key ends so.
local function behind_field(okey)
  return okey .. '\0'
end

-- Leases others behind the head of an ordering key.
local function keep_behind(handler, okey, members)
  local field, known, all = behind_field(okey), {}, {}
  local packed = call('HGET', handlers[handler].heads, field)
  for _, list in ipairs({packed and cmsgpack.unpack(packed) or {}, members}) do
    for _, member in ipairs(list) do
      if not known[member] then all[#all + 1] = member end
      known[member] = true
    end
  end
  table.sort(all)
  call('HSET', handlers[handler].heads, field, cmsgpack.pack(all))
end

-- Takes the first that is still leased behind the head of an ordering key from their list.
local function next_behind(handler, okey, packed)
  local list, heads, field = cmsgpack.unpack(packed), handlers[handler].heads, behind_field(okey)
  local head, rest = nil, {}
  for _, member in ipairs(list) do
    local s = not head and load(string.sub(member, 7))
    if head then
      rest[#rest + 1] = member
    elseif s and is_held(s) and s.okey == okey and member_of(s) == member then
      head = member
    end
  end
  if #rest > 0 then call('HSET', heads, field, cmsgpack.pack(rest)) else call('HDEL', heads, field) end
  return head
end

-- Counts the attempt of a lease that was behind others.
local function count_start(s)
  if has_flag(s, BEHIND) then s.started = s.started + 1 end
  set_flag(s, BEHIND, false)
end

-- What is leased behind others cannot be claimed when its lease has run out, and so is below zero.
local function leased_score(s)
  return integer(has_flag(s, BEHIND) and -s.at or s.at)
end

-- Takes the leases of a run away behind one whose own has run out, and with them their turn. They are leased
-- by nobody until they are claimed.
local function end_run_behind(handler, s)
  local heads, field, left = handlers[handler].heads, behind_field(s.okey), {}
  local packed = call('HGET', heads, field)
  if not packed then return end
  for _, member in ipairs(cmsgpack.unpack(packed)) do
    local f = load(string.sub(member, 7))
    if f and is_held(f) and f.okey == s.okey and member_of(f) == member then
      if f.seq > s.seq then
        f.worker, f.token, f.at = '', math.max(f.token + 1, right_now), math.min(f.at, now)
        save(f)
        move(handler, 'leased', true, f, leased_score(f))
      else
        left[#left + 1] = member
      end
    end
  end
  if #left > 0 then call('HSET', heads, field, cmsgpack.pack(left)) else call('HDEL', heads, field) end
end

-- The message of a member, unless that is of one that is not there any more.
local function message_of(member)
  local s = load(string.sub(member, 7))
  return s and (s.state == -1 or member_of(s) == member) and s or nil
end

-- The first member of an ordering key's open messages. Those of an inbox that was removed may be left.
local function first_open(open, okey)
  while true do
    local first = call('ZRANGEBYLEX', open, '[' .. okey .. '\0', '(' .. okey .. '\1', 'LIMIT', 0, 1)[1]
    local head = first and string.sub(first, #okey + 2)
    if not head or message_of(head) then return head end
    call('ZREM', open, first)
  end
end

-- Of an ordering key's open messages, the first that a worker has leased is the head, else the earliest.
local function promote_key_head(handler, okey)
  local keys = handlers[handler]
  local current, behind = unpack(call('HMGET', keys.heads, okey, behind_field(okey)))
  local held = current and message_of(current)
  if held and is_held(held) then return end
  local head = behind and next_behind(handler, okey, behind)
  if not head then head = first_open(keys.open, okey) end
  if current and current ~= head then
    call('ZREM', keys.due, current)
    if held and held.state == LEASED then move(handler, 'leased', true, held, leased_score(held)) end
  end
  if not head then
    if current then call('HDEL', keys.heads, okey) end
    return
  end
  if current ~= head then call('HSET', keys.heads, okey, head) end
  local s = load(string.sub(head, 7))
  if s and s.state == PENDING then
    call('ZADD', keys.due, s.due, head)
    if s.due <= now then wake[handler] = true end
  elseif s and s.state == LEASED then
    if s.at > now and is_held(s) then count_start(s) else wake[handler] = true end
    save(s)
    move(handler, 'leased', true, s, integer(s.at))
  end
end

local finished_at
local finishing = {}

-- What becomes final in one script does so at one moment, which names its entry in the stream of
-- its handler and state and is later than all before.
local function note_finished(handler, state, seq, n)
  local stream = handlers[handler].done[state]
  local list = finishing[stream] or {}
  finishing[stream] = list
  list[#list + 1] = struct.pack('>I6I2', seq, n)
end

local function finish(s, state)
  finished_at = finished_at or math.max(now, (tonumber(marker[4]) or 0) + 1)
  s.state, s.at = state, finished_at
  set_flag(s, BEHIND, false)
  note_finished(handler_of(s.key), state, s.seq, 0)
  if state == DEAD then call('ZADD', dead, s.seq, s.key) end
end

local function finish_run(run)
  finished_at = finished_at or math.max(now, (tonumber(marker[4]) or 0) + 1)
  run.state, run.at = PROCESSED, finished_at
  note_finished(run.handler, PROCESSED, run.base, run.n)
end

-- Takes a final state back. Its number stays in the stream, where it means nothing any more.
local function unfinish(s)
  if s.state == DEAD then
    call('ZREM', dead, s.key)
    if has_flag(s, BLOCKS) then count(handler_of(s.key), BLOCKING, -1) end
  end
end

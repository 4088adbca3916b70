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
local function promote_key_head(handler, okey)
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

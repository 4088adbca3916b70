-- What scripts do with messages, whichever way they are stored.

-- Writes all that is still in memory: the last thing that a writing script does.
local function write()
  save_all()
  move_all()
  for handler, keys in pairs(touched) do
    for okey in pairs(keys) do promote_key_head(handler, okey) end
  end
  save_all()
  move_all()
  for handler, of_handler in pairs(changes) do
    for state, by in pairs(of_handler) do
      local field = handler .. '\0' .. state
      if by ~= 0 and call('HINCRBY', counts, field, by) <= 0 then call('HDEL', counts, field) end
    end
  end
  for stream, seqs in pairs(finishing) do
    call('XADD', stream, integer(finished_at), 's', table.concat(seqs))
  end
  if finished_at then call('HSET', meta, 'finished_at', integer(finished_at)) end
  if not quiet then
    for handler in pairs(wake) do call('PUBLISH', ARGV[6] .. handler, '') end
  end
  changes, touched, wake, finishing = {}, {}, {}, {}
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
local function insert(key, seq, due, okey, whole)
  local static = static_part(whole)
  local s = {key = key, state = PENDING, seq = seq, accepted = now, due = resolve(due), token = 0, leased = false, at = now,
    started = 0, finished = 0, replays = 0, bytes = #whole - 4 - #static, flags = 0, worker = '',
    okey = okey ~= '' and okey or nil}
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
  s.state, s.leased, s.at = LEASED, now, now + length
  s.token = math.max(s.token + 1, right_now)
  s.started = s.started + 1
  set_flag(s, BEHIND, false)
  s.worker = worker
  save(s)
end

-- The messages that directly follow the first one of an ordering key and may be leased with it, at most so
-- many: each pending, due, and without an attempt that was started and never finished.
local function followers(handler, s, most)
  local found, keys = {}, {}
  if not s.okey or most < 1 or s.started ~= s.finished then return found end
  local behind, past = '(' .. open_member(s), '(' .. s.okey .. '\1'
  for n, member in ipairs(call('ZRANGEBYLEX', handlers[handler].open, behind, past, 'LIMIT', 0, most)) do
    keys[n] = string.sub(member, #s.okey + 8)
  end
  load_all(keys)
  for n, key in ipairs(keys) do
    local f = states[key]
    if not f or f.state ~= PENDING or f.due > right_now or f.started ~= f.finished then break end
    found[n] = f
  end
  return found
end

local function row(s, static, err, bytes)
  if s.state == -1 then return {s.key, -1} end
  if s.run then bytes = s.dropped and -1 or bytes else bytes = s.bytes end
  return {s.key, s.state, s.seq, s.accepted, s.due, s.leased, s.at, s.started, s.finished, s.replays, bytes or -1, s.flags, s.worker,
    s.okey or false, static or false, err or false}
end

local function full_row(s)
  if s.state == -1 then return {s.key, -1} end
  local static, bytes = static_of(s)
  return row(s, static, has_flag(s, HAS_ERROR) and call('HGET', errors, s.key), bytes)
end

-- ARGV: what to do, then its values, then keys. Purge: state and age. Apart: the number of a run.
local what = ARGV[arg]

local function shown(s)
  if s.state == LEASED and s.at <= now then return PENDING end
  return s.state
end

local function replay(s, payload)
  if s.state < PROCESSED then return {'state', shown(s)} end
  s = own(s)
  local stored = call('HGET', body, s.key)
  if payload then
    local static = stored and string.sub(stored, 5, 4 + struct.unpack('>I4', stored)) or static_of(s)
    call('HSET', body, s.key, struct.pack('>I4', #static) .. static .. payload)
    s.bytes = #payload
  elseif not stored then
    return {'dropped'}
  end
  unfinish(s)
  local handler = handler_of(s.key)
  count(handler, s.state, -1)
  count(handler, PENDING, 1)
  if s.flags % 2 == 1 then call('HDEL', errors, s.key) end
  if s.flags % 4 >= 2 then call('HDEL', results, s.key) end
  s.state, s.due, s.at, s.started, s.finished, s.flags = PENDING, now, now, 0, 0, 0
  s.replays = s.replays + 1
  save(s)
  if s.okey then
    call('ZADD', handlers[handler].open, 0, open_member(s))
    touch(handler, s.okey)
  else
    waiting(handler, s)
  end
  return {'done'}
end

local function discard(s)
  local state, handler = shown(s), handler_of(s.key)
  if state ~= PENDING and state ~= DEAD then return {'state', state} end
  s = own(s)
  count(handler, s.state, -1)
  count(handler, DISCARDED, 1)
  if s.state == LEASED then
    s.token = math.max(s.token + 1, now)
    move(handler, 'leased', false, s)
  elseif s.state == DEAD then
    unfinish(s)
  else
    move(handler, 'due', false, s)
  end
  finish(s, DISCARDED)
  set_flag(s, BLOCKS, false)
  save(s)
  if s.okey then
    call('ZREM', handlers[handler].open, open_member(s))
    touch(handler, s.okey)
  end
  return {'done'}
end

if what == 'purge' then
  local state, cutoff = tonumber(ARGV[arg + 1]), now - ARGV[arg + 2]
  local keys, list = {}, {}
  for at = arg + 3, #ARGV do keys[#keys + 1] = ARGV[at] end
  load_all(keys)
  for _, key in ipairs(keys) do
    local s = states[key] or nil
    if s and s.state == state and s.at <= cutoff then list[#list + 1] = s end
  end
  forget_all(list)
  write()
  sweep(state)
  return {#list, gone}
end

if what == 'apart' then
  local run = run_at(tonumber(ARGV[arg + 1]))
  if run then take_apart(run) end
  return 1
end

-- Replay or discard: a bit for each state in which to do it, whether there is a new payload, the
-- payload, keys.
local mask, answers = tonumber(ARGV[arg + 1]), {}
local payload = ARGV[arg + 2] == '1' and ARGV[arg + 3] or nil
for at = arg + 4, #ARGV do
  local s, answer = load(ARGV[at]), nil
  if not s then
    answer = {'absent'}
  elseif s.state == -1 then
    answer = {'corrupt'}
  elseif math.floor(mask / 2 ^ shown(s)) % 2 == 0 then
    answer = {'state', shown(s)}
  elseif what == 'replay' then
    answer = replay(s, payload)
  else
    answer = discard(s)
  end
  answers[#answers + 1] = answer
end
write()
return answers

-- ARGV: a bit for each state in which to do it, whether there is a new payload, the payload, keys.
local function replay(s, payload)
  if s.state < PROCESSED then return {'state', state_of(s)} end
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

return intervene(replay)

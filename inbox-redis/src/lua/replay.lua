-- ARGV: as `interventions.lua` says, without a due time.

-- The static part with other headers, which are its end.
local function with_headers(static, headers)
  local kind = 9
  local content_type = kind + 1 + string.byte(static, kind)
  return string.sub(static, 1, content_type + string.byte(static, content_type)) .. headers
end

local function replay(s, edit)
  if s.state < PROCESSED then return {'state', state_of(s)} end
  s = own(s)
  local stored = call('HGET', body, s.key)
  if not stored and not edit.payload then return {'dropped'} end
  worked = worked + #(stored or '') / 500
  if edit.payload or edit.headers then
    local static = stored and static_part(stored) or static_of(s)
    local payload = edit.payload or string.sub(stored, 5 + #static)
    s.bytes = #payload
    if edit.headers then
      static = with_headers(static, edit.headers)
      set_flag(s, EDITED, true)
      call('HSET', statics, s.key, struct.pack('>I4', s.bytes) .. static)
    end
    call('HSET', body, s.key, struct.pack('>I4', #static) .. static .. payload)
  end
  unfinish(s)
  local handler = handler_of(s.key)
  count(handler, s.state, -1)
  count(handler, PENDING, 1)
  if has_flag(s, HAS_ERROR) then call('HDEL', errors, s.key) end
  if has_flag(s, HAS_RESULT) then call('HDEL', results, s.key) end
  s.state, s.due, s.at, s.started, s.finished = PENDING, now, now, 0, 0
  for _, flag in ipairs({HAS_ERROR, HAS_RESULT, BLOCKS}) do set_flag(s, flag, false) end
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

-- ARGV: as `interventions.lua` says, without an edit or a due time.
local function discard(s)
  local state, handler = state_of(s), handler_of(s.key)
  if state ~= PENDING and state ~= DEAD then return {'state', state} end
  s = own(s)
  count(handler, s.state, -1)
  count(handler, DISCARDED, 1)
  if s.state == LEASED then
    s.token = math.max(s.token + 1, right_now)
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

return intervene(discard)

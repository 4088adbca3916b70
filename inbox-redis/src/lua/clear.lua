-- ARGV: as `interventions.lua` says, without an edit or a due time.
local function clear(s)
  s = own(s)
  local handler = handler_of(s.key)
  if s.state == PENDING or s.state == LEASED then
    move(handler, s.state == PENDING and 'due' or 'leased', false, s)
    if s.okey then
      call('ZREM', handlers[handler].open, open_member(s))
      touch(handler, s.okey)
    end
  end
  forget(s)
  return {'done'}
end

local answer = intervene(clear)
trim_log()
for state = PROCESSED, DISCARDED do sweep(state, LOOKS) end
return answer

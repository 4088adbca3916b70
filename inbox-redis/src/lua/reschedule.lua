-- ARGV: as `interventions.lua` says, without an edit.
local function reschedule(s, edit)
  if state_of(s) ~= PENDING then return {'state', state_of(s)} end
  s = own(s)
  local handler = handler_of(s.key)
  if s.state == LEASED then
    if s.okey then end_run_behind(handler, s) end
    -- Its lease has run out, and is lost.
    s.state, s.token = PENDING, math.max(s.token + 1, right_now)
    set_flag(s, BEHIND, false)
    move(handler, 'leased', false, s)
    count(handler, LEASED, -1)
    count(handler, PENDING, 1)
  end
  s.due = resolve(edit.due)
  save(s)
  if s.okey then
    touch(handler, s.okey)
  else
    waiting(handler, s)
  end
  return {'done'}
end

return intervene(reschedule)

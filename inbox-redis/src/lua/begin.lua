-- ARGV: the sequence number, or 0 to draw here; key, due time, ordering key, body; whether it is to be
-- here whatever `places` says; whether to store it if it is new; lease length, worker.
local key, whole = ARGV[arg + 1], ARGV[arg + 4]
local length, worker = tonumber(ARGV[arg + 7]), ARGV[arg + 8]
local handler = handler_of(key)
local s = load(key)
if not s then
  local place = ARGV[arg + 5] ~= '1' and noted_shard(key)
  if place then return {'elsewhere', place} end
  if ARGV[arg + 6] == '0' then return {'absent'} end
  local seq = tonumber(ARGV[arg])
  if seq == 0 then seq = call('HINCRBY', meta, 'seq', 1) end
  call('HSET', body, key, whole)
  s = insert(key, seq, ARGV[arg + 2], ARGV[arg + 3], whole)
  -- Nobody else is woken for a message that its receiver runs at once.
  quiet = true
  write()
end
if s.state == -1 then return {'corrupt'} end
if s.state == PROCESSED then
  return {'processed', has_flag(s, HAS_RESULT) and call('HGET', results, key)}
elseif s.state == DEAD then
  return {'dead', has_flag(s, HAS_ERROR) and call('HGET', errors, key)}
elseif s.state == DISCARDED then
  return {'discarded'}
elseif s.state == LEASED and s.at > now then
  return {'busy', s.at}
elseif s.state == PENDING and s.due > now then
  return {'busy', s.due}
elseif (s.state == PENDING or has_flag(s, BEHIND)) and s.okey and call('HGET', handlers[handler].heads, s.okey) ~= member_of(s) then
  return {'blocked'}
end
s = own(s)
local stored = call('HGET', body, key)
if not stored then return {'corrupt'} end
if s.state == PENDING then move(handler, 'due', false, s) end
if s.state == LEASED and s.okey then end_run_behind(handler, s) end
lease(s, handler, length, worker)
move(handler, 'leased', true, s, integer(s.at))
write()
return {'run', {key, s.seq, s.accepted, s.token, s.at, s.started, s.finished, s.replays, s.okey or false, stored, s.due, s.seq}}

-- ARGV: the sequence number, or 0 to draw here; key, due time, ordering key, body, home shard and
-- guard, and the moment after which it is too late to place it, as for receive; whether to store it
-- if it is new; lease length, worker.
local key, whole = ARGV[arg + 1], ARGV[arg + 4]
local guard = tonumber(ARGV[arg + 6])
local length, worker = tonumber(ARGV[arg + 9]), ARGV[arg + 10]
local handler = handler_of(key)
local s = load(key)
if s and s.state == GUARD then return {'guard', s.shard, s.guard} end
if not s then
  local late = guard and time > tonumber(ARGV[arg + 7])
  if guard and (late or is_fenced(key, guard)) then return {'fenced'} end
  if ARGV[arg + 8] == '0' then return {'absent'} end
  local seq = tonumber(ARGV[arg])
  if seq == 0 then seq = call('HINCRBY', meta, 'seq', 1) end
  call('HSET', body, key, whole)
  s = insert(key, seq, ARGV[arg + 2], ARGV[arg + 3], whole, tonumber(ARGV[arg + 5]), guard)
  -- Nobody else is woken for a message that its receiver runs at once.
  quiet = true
  write()
end
if s.state == -1 then return {'corrupt'} end
if s.state == PROCESSED then
  return {'processed', s.flags % 4 >= 2 and call('HGET', results, key)}
elseif s.state == DEAD then
  return {'dead', s.flags % 2 == 1 and call('HGET', errors, key)}
elseif s.state == DISCARDED then
  return {'discarded'}
elseif s.state == LEASED and s.at > now then
  return {'busy', s.at}
elseif s.state == PENDING and s.due > now then
  return {'busy', s.due}
elseif s.state == PENDING and s.okey and call('HGET', handlers[handler].heads, s.okey) ~= member_of(s) then
  return {'blocked'}
end
s = own(s)
local stored = call('HGET', body, key)
if not stored then return {'corrupt'} end
if s.state == PENDING then move(handler, 'due', false, s) end
lease(s, handler, length, worker)
move(handler, 'leased', true, s, integer(s.at))
write()
return {'run', {key, s.seq, s.accepted, s.token, s.at, s.started, s.finished, s.okey or false, stored, s.due}}

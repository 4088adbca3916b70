-- ARGV: limit, most bytes, lease length, worker.
local limit, most_bytes = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1])
local length, worker = tonumber(ARGV[arg + 2]), ARGV[arg + 3]
local found, sets = {}, 0
for handler, keys in pairs(handlers) do
  for _, set in ipairs({'due', 'leased'}) do
    local list = call('ZRANGEBYSCORE', keys[set], '-inf', integer(now), 'WITHSCORES', 'LIMIT', 0, limit)
    if #list > 0 then sets = sets + 1 end
    for n = 1, #list, 2 do
      found[#found + 1] = {at = tonumber(list[n + 1]), member = list[n], handler = handler, set = set}
    end
  end
end
-- One set is in order already.
if sets > 1 then
  table.sort(found, function(a, b)
    if a.at ~= b.at then return a.at < b.at end
    return a.member < b.member
  end)
end
local taken, size, more, next_one = {}, 0, #found >= limit, 1
local corrupt = {}
while next_one <= #found and next_one <= limit and size < most_bytes do
  local keys, last = {}, math.min(next_one + 49, #found, limit)
  for n = next_one, last do keys[#keys + 1] = string.sub(found[n].member, 7) end
  load_all(keys)
  local bodies = call('HMGET', body, unpack(keys))
  for n = next_one, last do
    local f, key, whole = found[n], keys[n - next_one + 1], bodies[n - next_one + 1]
    local s = states[key] or nil
    local seq = struct.unpack('>I6', f.member)
    if not s or s.state == GUARD or (s.state ~= -1 and s.seq ~= seq) then
      -- The index names what is not there: nothing that a script of ours leaves behind.
      call('ZREM', handlers[f.handler][f.set], f.member)
    elseif s.state == -1 or not whole then
      call('ZREM', handlers[f.handler][f.set], f.member)
      count(f.handler, f.set == 'due' and PENDING or LEASED, -1)
      count(f.handler, DEAD, 1)
      if s.state == -1 then
        s = {key = key, seq = seq, accepted = now, due = now, token = 0, at = now, started = 0, finished = 0, replays = 0,
          bytes = whole and #whole or -1, flags = 0, worker = ''}
      end
      finish(s, DEAD)
      s.token = math.max(s.token + 1, now)
      set_flag(s, HAS_ERROR, true)
      call('HSET', errors, key, 'corrupt: its state or body cannot be read')
      save(s)
      if s.okey then
        call('ZREM', handlers[f.handler].open, open_member(s))
        touch(f.handler, s.okey)
      end
      corrupt[#corrupt + 1] = key
    else
      if size > 0 and size + #whole > most_bytes then
        size = most_bytes
        break
      end
      size = size + #whole
      s.member = f.member
      if f.set == 'due' then move(f.handler, 'due', false, s) end
      lease(s, f.handler, length, worker)
      move(f.handler, 'leased', true, s, integer(s.at))
      taken[#taken + 1] = {key, s.seq, s.accepted, s.token, s.at, s.started, s.finished, s.okey or false, whole, f.at}
    end
  end
  next_one = last + 1
end
write()
return {taken, corrupt, (more and size < most_bytes) and 1 or 0}

-- ARGV: limit, most bytes, lease length, worker, most of an ordering key.
local limit, most_bytes = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1])
local length, worker, run_limit = tonumber(ARGV[arg + 2]), ARGV[arg + 3], tonumber(ARGV[arg + 4])
leave_out_paused()
local found, sets, most = {}, 0, 0
for handler, keys in pairs(handlers) do
  for _, set in ipairs({'due', 'leased'}) do
    local list = call('ZRANGEBYSCORE', keys[set], 0, integer(right_now), 'WITHSCORES', 'LIMIT', 0, limit)
    if #list > 0 then sets = sets + 1 end
    most = most + #list / 2
    for n = 1, #list, 2 do
      found[#found + 1] = {at = tonumber(list[n + 1]), member = list[n], handler = handler, set = set}
    end
  end
  for _, set in ipairs({'run_due', 'run_leased'}) do
    local list, messages = claimable_runs(keys[set], limit)
    if #list > 0 then sets = sets + 1 end
    most = most + messages
    for _, f in ipairs(list) do
      f.handler, f.set, f.is_run = handler, set, true
      found[#found + 1] = f
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
local taken, taken_runs, corrupt, left, size = {}, {}, {}, limit, 0

local function claim_run(f)
  local run, state = f.run, f.set == 'run_due' and PENDING or LEASED
  if not run or run.state ~= state then
    call('ZREM', handlers[f.handler][f.set], f.member)
    return
  end
  run.blob = call('HGET', blobs, integer(run.base))
  if not run.blob or #run.blob ~= run.bytes_held then
    -- One that cannot be read comes again as single messages, which are set aside.
    take_apart(run)
    return
  end
  if size > 0 and size + #run.blob > most_bytes then
    size = most_bytes
    return
  end
  if run.n > left and not cut_run(run, left) then
    take_apart(run)
    return
  end
  local blob = run.blob
  count(f.handler, run.state, -run.n)
  count(f.handler, LEASED, run.n)
  if state == PENDING then index_run(run, 'run_due') end
  run.state, run.leased, run.at, run.token = LEASED, now, now + length, math.max(run.token + 1, right_now)
  run.started, run.worker = run.started + 1, worker
  index_run(run, 'run_leased', run.at)
  save_run(run)
  size, left = size + #blob, left - run.n
  taken_runs[#taken_runs + 1] = {run.origin, run.accepted, run.token, run.at, run.started, run.finished, f.at, blob, run.base}
end

-- Leases `list` behind the first one of their ordering key, as far as the bodies are there and small enough.
local function claim_followers(f, first, list)
  local members = {}
  for n, s in ipairs(list) do
    local whole = call('HGET', body, s.key)
    if not whole or size + #whole > most_bytes then break end
    size, left = size + #whole, left - 1
    lease(s, f.handler, length, worker)
    s.started = s.started - 1
    set_flag(s, BEHIND, true)
    move(f.handler, 'leased', true, s, leased_score(s))
    members[n] = member_of(s)
    taken[#taken + 1] = {s.key, s.seq, s.accepted, s.token, s.at, s.started + 1, s.finished, s.replays, s.okey, whole, f.at, first.seq}
  end
  if #members > 0 then keep_behind(f.handler, first.okey, members) end
end

local function claim_ones(first, last)
  local keys = {}
  for n = first, last do keys[#keys + 1] = string.sub(found[n].member, 7) end
  load_all(keys)
  local bodies = call('HMGET', body, unpack(keys))
  for n = first, last do
    if left <= 0 then break end
    local f, key, whole = found[n], keys[n - first + 1], bodies[n - first + 1]
    local s = states[key] or nil
    local seq = struct.unpack('>I6', f.member)
    if not s or s.run or (s.state ~= -1 and s.seq ~= seq) then
      -- The index names what is not there: nothing that a script of ours leaves behind.
      call('ZREM', handlers[f.handler][f.set], f.member)
    elseif s.state == -1 or not whole then
      call('ZREM', handlers[f.handler][f.set], f.member)
      count(f.handler, f.set == 'due' and PENDING or LEASED, -1)
      count(f.handler, DEAD, 1)
      if s.state == -1 then
        s = {key = key, seq = seq, accepted = now, due = now, token = 0, leased = false, at = now, started = 0, finished = 0,
          replays = 0, bytes = whole and #whole or -1, flags = 0, worker = ''}
      end
      finish(s, DEAD)
      s.token = math.max(s.token + 1, right_now)
      set_flag(s, HAS_ERROR, true)
      call('HSET', errors, key, 'corrupt: its state or body cannot be read')
      save(s)
      if s.okey then
        call('ZREM', handlers[f.handler].open, open_member(s))
        touch(f.handler, s.okey)
      end
      corrupt[#corrupt + 1] = key
      left = left - 1
    else
      if size > 0 and size + #whole > most_bytes then
        size = most_bytes
        break
      end
      size, left = size + #whole, left - 1
      s.member = f.member
      if f.set == 'due' then move(f.handler, 'due', false, s) end
      if s.state == LEASED and s.okey then end_run_behind(f.handler, s) end
      local behind = followers(f.handler, s, math.min(run_limit - 1, left))
      lease(s, f.handler, length, worker)
      move(f.handler, 'leased', true, s, integer(s.at))
      taken[#taken + 1] = {key, s.seq, s.accepted, s.token, s.at, s.started, s.finished, s.replays, s.okey or false, whole, f.at, s.seq}
      claim_followers(f, s, behind)
    end
  end
end

-- Bodies of more may be read for nothing: others come with the first of an ordering key.
local n, chunk = 1, 0
while n <= #found and left > 0 and size < most_bytes do
  if found[n].is_run then
    claim_run(found[n])
    n = n + 1
  else
    local last = n
    chunk = math.min(run_limit > 1 and 8 or 50, left)
    while last < #found and last - n < chunk - 1 and not found[last + 1].is_run do last = last + 1 end
    claim_ones(n, last)
    n = last + 1
  end
end
write()
return {taken, corrupt, ((most >= limit or left <= 0) and size < most_bytes) and 1 or 0, taken_runs}

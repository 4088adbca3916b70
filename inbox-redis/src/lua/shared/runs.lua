-- Runs: messages that were received together and have had the same fate since. They share one
-- record in `runs`, whose score is the first one's number, one body in `blobs` and one place among
-- the claimable. A message of a run has nothing of its own but its key and number in `ids`.
local runs_known, last_run = {}, nil
-- About how many microseconds this script has worked on what may take long: entries of the log and runs that it
-- takes apart. One that may have to do much of that stops after MOST_WORK, and its caller goes on with another.
local worked, MOST_WORK = 0, 50000
local RUN = 114 -- 'r': no state begins so

local function run_of_raw(raw)
  local ok, base, n, last, origin, state, accepted, due, token, leased, at, started, finished, dropped, worker, handler, offsets, bytes_held = pcall(cmsgpack.unpack, raw)
  if not ok or type(bytes_held) ~= 'number' then return nil end
  if runs_known[base] == nil then
    runs_known[base] = {base = base, n = n, last = last, origin = origin, state = state, accepted = accepted, due = due, token = token,
      leased = leased and token - leased, at = at, started = started, finished = finished, dropped = dropped, worker = worker, handler = handler, offsets = offsets,
      bytes_held = bytes_held, raw = raw, replays = 0, flags = 0}
  end
  return runs_known[base] or nil
end

local function run_at(base)
  if runs_known[base] == nil then
    local text = integer(base)
    local raw = call('ZRANGEBYSCORE', runs, text, text)[1]
    if raw then run_of_raw(raw) end
  end
  return runs_known[base] or nil
end

-- Whether a number is one of a run's: all from its first to its last are, but for a part of a batch
-- of which other shards have some.
local function is_in(run, seq)
  if seq < run.base or seq > run.last then return false end
  if run.offsets == '' then return true end
  if not run.members or run.members_of ~= run.n then
    run.members, run.members_of = {}, run.n
    for n = 1, run.n do run.members[run.origin + struct.unpack('>I2', run.offsets, 2 * n - 1)] = true end
  end
  return run.members[seq] or false
end

-- The run that a number belongs to. The numbers of two runs never interleave.
local function run_of(seq)
  if last_run and not last_run.gone and is_in(last_run, seq) then return last_run end
  local raw = call('ZREVRANGEBYSCORE', runs, integer(seq), '-inf', 'LIMIT', 0, 1)[1]
  local run = raw and run_of_raw(raw)
  if not run or not is_in(run, seq) then return nil end
  last_run = run
  return run
end

local function save_run(run)
  if run.raw then call('ZREM', runs, run.raw) end
  run.raw = cmsgpack.pack(run.base, run.n, run.last, run.origin, run.state, run.accepted, run.due, run.token,
    run.leased and run.token - run.leased, run.at, run.started, run.finished, run.dropped, run.worker, run.handler, run.offsets, run.bytes_held)
  call('ZADD', runs, integer(run.base), run.raw)
  runs_known[run.base] = run
end

local function remove_run(run)
  call('ZREM', runs, run.raw)
  if not run.dropped then call('HDEL', blobs, integer(run.base)) end
  run.gone = true
  runs_known[run.base] = false
end

local function index_run(run, set, score)
  local member = struct.pack('>I6', run.base)
  if score then
    call('ZADD', handlers[run.handler][set], integer(score), member)
  else
    call('ZREM', handlers[run.handler][set], member)
  end
end

-- Of a set of runs, the first that are claimable: as many as have so many messages.
local function claimable_runs(set, limit)
  local found, messages, from = {}, 0, 0
  while messages < limit do
    local list = call('ZRANGEBYSCORE', set, '-inf', integer(right_now), 'WITHSCORES', 'LIMIT', from, 4)
    for n = 1, #list, 2 do
      local run = run_at((struct.unpack('>I6', list[n])))
      messages = messages + (run and run.n or 0)
      found[#found + 1] = {at = tonumber(list[n + 1]), member = list[n], run = run}
      if messages >= limit then break end
    end
    if #list < 8 then break end
    from = from + 4
  end
  return found, messages
end

-- The numbers of a run's messages: without gaps, or as distances from its origin.
local function numbers_of(run)
  local numbers = {}
  for n = 1, run.n do
    if run.offsets == '' then
      numbers[n] = run.base + n - 1
    else
      numbers[n] = run.origin + struct.unpack('>I2', run.offsets, 2 * n - 1)
    end
  end
  return numbers
end

-- Takes apart what many messages have in one string: for each the distance of its number, its key,
-- its static part and its payload's length; in `blobs` also the payload.
local function items_of(packed, origin, bodies)
  local function parse()
    local list, at = {}, 1
    while at <= #packed do
      local item, distance, length = {from = at}, nil, nil
      distance, length, at = struct.unpack('>I2I2', packed, at)
      item.seq, item.key, at = origin + distance, string.sub(packed, at, at + length - 1), at + length
      length, at = struct.unpack('>I4', packed, at)
      item.static, at = string.sub(packed, at, at + length - 1), at + length
      item.bytes, at = struct.unpack('>I4', packed, at)
      if bodies then
        item.payload, at = at, at + item.bytes
      end
      item.to = at - 1
      list[#list + 1] = item
    end
    return list
  end
  local ok, list = pcall(parse)
  worked = worked + #packed / 1000 + (ok and 3 * #list or 0)
  return ok and list or nil
end

-- The parts of a run's blob by key, or nil when there is none that can be read.
local function parts_of(run)
  if run.parts == nil then
    run.parts = false
    local blob = run.blob or not run.dropped and call('HGET', blobs, integer(run.base))
    local items = blob and items_of(blob, run.origin, true)
    if items and #items == run.n then
      run.parts = {blob = blob, items = items}
      for _, item in ipairs(items) do run.parts[item.seq] = item end
    end
  end
  return run.parts or nil
end

local function whole_of(parts, item)
  return struct.pack('>I4', #item.static) .. item.static .. string.sub(parts.blob, item.payload, item.payload + item.bytes - 1)
end

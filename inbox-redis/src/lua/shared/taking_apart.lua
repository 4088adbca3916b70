-- What it takes to take a run apart.
local function work_of(run)
  return 25 * run.n + (run.dropped and 0 or run.bytes_held / 50)
end

-- Takes a run apart into messages that each have their own state, as if they had always had one.
local function take_apart(run)
  worked = worked + work_of(run)
  local parts, set = parts_of(run), nil
  if run.state == PENDING then set = 'due' elseif run.state == LEASED then set = 'leased' end
  local fields, bodies, scores = {}, {}, {}
  for n, seq in ipairs(numbers_of(run)) do
    local item = parts and parts[seq]
    local key, _, bytes = nil, nil, nil
    if item then key, bytes = item.key, item.bytes else key, _, bytes = logged(seq) end
    if key then
      local s = {key = key, state = run.state, seq = seq, accepted = run.accepted, due = run.due, token = run.token, leased = run.leased, at = run.at,
        started = run.started, finished = run.finished, replays = 0, bytes = run.dropped and -1 or bytes, flags = 0, worker = run.worker}
      states[key] = s
      fields[#fields + 1] = key
      fields[#fields + 1] = encode(s)
      if item then
        bodies[#bodies + 1] = key
        bodies[#bodies + 1] = whole_of(parts, item)
      end
      if set then
        scores[#scores + 1] = integer(set == 'due' and s.due or s.at)
        scores[#scores + 1] = member_of(s)
      end
    end
  end
  put('HSET', ids, fields)
  put('HSET', body, bodies)
  if set then
    put('ZADD', handlers[run.handler][set], scores)
    index_run(run, 'run_' .. set)
  end
  remove_run(run)
end

-- The same message with its own state, for what changes it alone.
local function own(s)
  if s.run and not s.run.gone then take_apart(s.run) end
  return states[s.key]
end

-- Of numbers and tokens of leases, the runs whose messages are all among them, each once.
local function whole_runs(list)
  local found, whole = {}, {}
  for _, one in ipairs(list) do
    local run = run_of(one.seq)
    if run and run.state == LEASED and run.token == one.token then
      local of_run = found[run] or {n = 0}
      found[run] = of_run
      if of_run[one.seq] or one.alone then of_run.n = -run.n end
      of_run[one.seq] = true
      of_run.n = of_run.n + 1
      one.run = run
    end
  end
  for run, of_run in pairs(found) do
    if of_run.n == run.n then whole[run] = true end
  end
  return whole
end

-- Keeps the first messages of a pending or leased run, whose blob was loaded, in it, and makes a run
-- of the others. Answers whether the blob could be cut.
local function cut_run(run, keep)
  local blob, set = run.blob, run.state == PENDING and 'run_due' or 'run_leased'
  local function find()
    local at, length = 1, nil
    for _ = 1, keep do
      length = struct.unpack('>I2', blob, at + 2)
      at = at + 4 + length
      length = struct.unpack('>I4', blob, at)
      at = at + 4 + length
      length = struct.unpack('>I4', blob, at)
      at = at + 4 + length
    end
    return at
  end
  local ok, at = pcall(find)
  if not ok or at > #blob then return false end
  local numbers = numbers_of(run)
  local rest = {base = numbers[keep + 1], n = run.n - keep, last = run.last, origin = run.origin, state = run.state,
    accepted = run.accepted, due = run.due, token = run.token, leased = run.leased, at = run.at, started = run.started,
    finished = run.finished, dropped = false, worker = run.worker, handler = run.handler, offsets = string.sub(run.offsets, 2 * keep + 1), replays = 0,
    flags = 0, bytes_held = #blob - at + 1}
  run.n, run.last, run.offsets, run.bytes_held = keep, numbers[keep], string.sub(run.offsets, 1, 2 * keep), at - 1
  run.parts, run.blob = nil, string.sub(blob, 1, at - 1)
  call('HSET', blobs, integer(rest.base), string.sub(blob, at), integer(run.base), run.blob)
  save_run(run)
  save_run(rest)
  index_run(rest, set, set == 'run_due' and rest.due or rest.at)
  return true
end

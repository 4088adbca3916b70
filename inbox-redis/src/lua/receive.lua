-- ARGV: the first sequence number, or 0 to draw here, and how many to draw; then messages in the
-- order of their places in the batch, each by itself or as a part, which becomes a run:
--   'one', place, key, due time, ordering key, body, the shard it belongs to if that is another
--     (then this is its home, where it is staged), home shard, guard (both empty for one at home),
--     the moment after which it is too late to place it
--   'part', place of the first, how many, their distances from it or nothing if there are no gaps, what
--     goes into the log, what goes into `blobs`, handler, keys
-- Answers 0 for a duplicate, 1 for one that is stored, 3 for one that comes too late, 4 for one that
-- is fenced off, since it was here and is gone, or a guard: shard, number, and whether it was staged
-- now (1), earlier (2), or is no longer (0).
local base = tonumber(ARGV[arg])
if base == 0 then base = call('HINCRBY', meta, 'seq', ARGV[arg + 1]) - ARGV[arg + 1] + 1 end
local answers, bodies = {}, {}

local function guarded(s)
  return {s.shard, s.guard, call('ZSCORE', staging, s.key) and 2 or 0}
end

local function receive_one(m)
  local raw = call('HGET', ids, m.key)
  local known = raw and decode(m.key, raw)
  if known then return known.state == GUARD and guarded(known) or 0 end
  if m.target then
    local guard = call('HINCRBY', meta, 'guard', 1)
    call('HSET', ids, m.key, cmsgpack.pack(GUARD, m.target, guard))
    call('HSET', staged, m.key, cmsgpack.pack(base + m.place, '@' .. integer(resolve(m.due)), m.okey, m.whole))
    call('ZADD', staging, integer(time), m.key)
    return {m.target, guard, 1}
  end
  if m.guard and is_fenced(m.key, m.guard) then return 4 end
  if m.guard and time > m.deadline then return 3 end
  insert(m.key, base + m.place, m.due, m.okey, m.whole, m.home, m.guard)
  bodies[#bodies + 1] = m.key
  bodies[#bodies + 1] = m.whole
  return 1
end

-- Of what a part has for each of its messages, that of the new ones; and their distances.
local function only_new(packed, raws, with_bodies)
  local kept, distances = {}, {}
  for n, item in ipairs(items_of(packed, 0, with_bodies) or {}) do
    if not raws[n] then
      kept[#kept + 1] = string.sub(packed, item.from, item.to)
      distances[#distances + 1] = struct.pack('>I2', item.seq)
    end
  end
  return table.concat(kept), table.concat(distances)
end

-- As messages by themselves: where the log cannot take the part.
local function receive_apart(origin, packed)
  local parts = {blob = packed}
  for _, item in ipairs(items_of(packed, 0, true) or {}) do
    local whole = whole_of(parts, item)
    insert(item.key, origin + item.seq, '@0', '', whole)
    bodies[#bodies + 1] = item.key
    bodies[#bodies + 1] = whole
  end
end

local function receive_part(origin, keys, offsets, packed, blob, handler)
  local raws, fields, n_new = call('HMGET', ids, unpack(keys)), {}, 0
  for n, key in ipairs(keys) do
    local answer = 1
    if raws[n] then
      local guard = string.byte(raws[n]) == GUARD and decode(key, raws[n])
      answer = guard and guarded(guard) or 0
    else
      n_new = n_new + 1
    end
    answers[#answers + 1] = answer
  end
  if n_new == 0 then return end
  local first, last = 0, #keys - 1
  if n_new < #keys then
    packed, offsets = only_new(packed, raws, false)
    blob = only_new(blob, raws, true)
  end
  if offsets ~= '' then
    first, last = struct.unpack('>I2', offsets), struct.unpack('>I2', offsets, #offsets - 1)
    if last - first == n_new - 1 then offsets = '' end
  end
  if not log_add(origin + first, origin, packed) then return receive_apart(origin, blob) end
  local place = 0
  for n, key in ipairs(keys) do
    if not raws[n] then
      local distance = offsets == '' and first + place or struct.unpack('>I2', offsets, 2 * place + 1)
      place = place + 1
      fields[2 * place - 1] = key
      fields[2 * place] = struct.pack('>BI6', RUN, origin + distance)
    end
  end
  put('HSET', ids, fields)
  local run = {base = origin + first, n = n_new, last = origin + last, origin = origin, state = PENDING, accepted = now, due = now,
    token = 0, at = now, started = 0, finished = 0, dropped = false, worker = '', handler = handler, offsets = offsets,
    bytes_held = #blob}
  call('HSET', blobs, integer(run.base), blob)
  save_run(run)
  index_run(run, 'run_due', run.due)
  count(handler, PENDING, n_new)
  wake[handler] = true
end

local at = arg + 2
while at <= #ARGV do
  if ARGV[at] == 'one' then
    answers[#answers + 1] = receive_one({place = tonumber(ARGV[at + 1]), key = ARGV[at + 2], due = ARGV[at + 3], okey = ARGV[at + 4],
      whole = ARGV[at + 5], target = tonumber(ARGV[at + 6]), home = tonumber(ARGV[at + 7]), guard = tonumber(ARGV[at + 8]),
      deadline = tonumber(ARGV[at + 9])})
    at = at + 10
  else
    local n, keys = tonumber(ARGV[at + 2]), {}
    for key = 1, n do keys[key] = ARGV[at + 6 + key] end
    receive_part(base + ARGV[at + 1], keys, ARGV[at + 3], ARGV[at + 4], ARGV[at + 5], ARGV[at + 6])
    at = at + 7 + n
  end
end
put('HSET', body, bodies)
write()
return answers

-- ARGV: the first sequence number, or 0 to draw here, and how many to draw; then messages in the
-- order of their places in the batch, each by itself or as a part, which becomes a run:
--   'one', place, key, due time, ordering key, body, whether it is to be here whatever `places` says
--   'part', place of the first, how many, their distances from it or nothing if there are no gaps, what
--     goes into the log, what goes into `blobs`, handler, keys
-- Answers 0 for a duplicate, 2 for one whose fingerprint differs, 1 for one that is stored, or {the
-- shard} that it belongs to.
local base = tonumber(ARGV[arg])
if base == 0 then base = call('HINCRBY', meta, 'seq', ARGV[arg + 1]) - ARGV[arg + 1] + 1 end
local answers, bodies = {}, {}

local function receive_one(m)
  local known = load(m.key)
  if known then return duplicate(known, static_part(m.whole)) end
  local place = not m.pinned and noted_shard(m.key)
  if place then return {place} end
  insert(m.key, base + m.place, m.due, m.okey, m.whole)
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
  local elsewhere, items = noted_shards(keys), nil
  for n, key in ipairs(keys) do
    local answer = 1
    if raws[n] then
      items = items or items_of(packed, 0, false) or {}
      answer = duplicate(decode(key, raws[n]), items[n] and items[n].static or '')
    elseif elsewhere[n] then
      answer, raws[n] = {shard_of_note(key, elsewhere[n])}, elsewhere[n]
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
    token = 0, leased = false, at = now, started = 0, finished = 0, dropped = false, worker = '', handler = handler, offsets = offsets,
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
      whole = ARGV[at + 5], pinned = ARGV[at + 6] == '1'})
    at = at + 7
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

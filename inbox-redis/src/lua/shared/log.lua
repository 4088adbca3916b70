-- An entry of the log, as what it says of every message. Those that were purged are still in it.
-- Its number is its first message's, and none of its messages is further from that than SPAN.
-- With several shards, messages that came by themselves can be in between.
local entries, entry_with, SPAN = {}, {}, 1000

local function entry_items(entry)
  local id = entry[1]
  if not entries[id] then
    local items = items_of(entry[2][4], tonumber(entry[2][2]), false)
    if not items or #items == 0 then return nil end
    entries[id] = {id = id, items = items, first = items[1].seq, last = items[#items].seq, gone = 0}
    for n, item in ipairs(items) do
      entries[id][item.seq] = n
      entry_with[item.seq] = entries[id]
    end
  end
  return entries[id]
end

-- Whether a number is before all that is logged. Asked backwards for what is up to such a number,
-- Redis walks the whole stream.
local first_logged
local function is_before_log(seq)
  if not first_logged then
    local first = call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
    first_logged = first and tonumber(string.match(first[1], '^%d+')) or math.huge
  end
  return seq < first_logged
end

local function find_entry(seq)
  local to, step, upper = integer(seq), 1, seq
  while true do
    if is_before_log(upper) then return nil end
    local list = call('XREVRANGE', log, to, integer(math.max(seq - SPAN, 0)), 'COUNT', step)
    for _, raw in ipairs(list) do
      local entry = entry_items(raw)
      if entry and entry[seq] then return entry end
    end
    if ARGV[2] == '1' or #list < step then return nil end
    to, step = '(' .. list[#list][1], 16
    upper = tonumber(string.match(list[#list][1], '^%d+')) - 1
  end
end

-- The entry with a number, or nil if there is none, which is remembered, too.
local function entry_of(seq)
  if entry_with[seq] == nil then entry_with[seq] = find_entry(seq) or false end
  return entry_with[seq] or nil
end

-- Answers whether it could be added: another shard's part of a later batch may have been quicker,
-- and a stream only grows at its end.
local function log_add(first, origin, packed)
  first_logged = nil
  local added = redis.pcall('XADD', log, integer(first), 'o', integer(origin), 'p', packed)
  return not (type(added) == 'table' and added.err)
end

local function log_one(s, static)
  local packed = struct.pack('>I2I2', 0, #s.key) .. s.key .. struct.pack('>I4', #static) .. static .. struct.pack('>I4', math.max(s.bytes, 0))
  if not log_add(s.seq, s.seq, packed) then
    call('ZADD', late, integer(s.seq), s.key)
    call('HSET', statics, s.key, struct.pack('>I4', math.max(s.bytes, 0)) .. static)
  end
end

-- Key, static part and the payload's length as it was received, of a number.
local function logged(seq)
  local entry = entry_of(seq)
  local item = entry and entry[seq] and entry.items[entry[seq]]
  if item then return item.key, item.static, item.bytes end
  local text = integer(seq)
  local key = call('ZRANGEBYSCORE', late, text, text)[1]
  local found = key and call('HGET', statics, key)
  if found and #found >= 4 then return key, string.sub(found, 5), (struct.unpack('>I4', found)) end
end

-- Of what was found, each with its number first, how many the log is asked for in one script: no more than `most`,
-- and at least one.
local function readable(found, most)
  local before = worked
  for n = 1, most do
    if worked - before >= MOST_WORK then return n - 1 end
    entry_of(found[n][1])
  end
  return most
end

-- What every script begins with. KEYS: the thirteen of the shard, then nine for each handler.
-- ARGV: version, shards, shard, microseconds to add to the clock, the moment by this server's clock that
-- is to be now if it has just been (0: now), channel, handlers, their names.
local meta, ids, log, body, errors, results, counts, dead = unpack(KEYS, 1, 8)
local late, statics, runs, blobs, places = unpack(KEYS, 9, 13)
local PENDING, LEASED, PROCESSED, DEAD, DISCARDED = 0, 1, 2, 3, 4
-- What dead messages that hold up their ordering key are counted as, too.
local BLOCKING = 5
-- BEHIND: leased behind others of its ordering key, and the attempt is not counted yet. The first of a key is
-- so if its turn came when its lease had run out.
local HAS_ERROR, HAS_RESULT, BLOCKS, EDITED, HAS_HISTORY, BEHIND = 1, 2, 4, 8, 16, 32
local call = redis.call

local function has_flag(s, flag)
  return math.floor(s.flags / flag) % 2 == 1
end

local function set_flag(s, flag, on)
  local has = has_flag(s, flag)
  if on and not has then s.flags = s.flags + flag end
  if not on and has then s.flags = s.flags - flag end
end

local marker = call('HMGET', meta, 'version', 'shards', 'shard', 'finished_at', 'works_from')
if not marker[1] then
  return redis.error_reply('INBOXMISSING ' .. call('EXISTS', ids, log))
end
-- A newer layout may allow builds of this version.
local suits = marker[1] == ARGV[1] or ((tonumber(marker[1]) or 0) > tonumber(ARGV[1])
  and (tonumber(marker[5]) or math.huge) <= tonumber(ARGV[1]))
if not suits or marker[2] ~= ARGV[2] or marker[3] ~= ARGV[3] then
  return redis.error_reply('INBOXVERSION ' .. marker[1] .. ' ' .. tostring(marker[2]) .. ' ' .. tostring(marker[3]))
end
local clock = call('TIME')
local time, moment = clock[1] * 1000000 + clock[2], tonumber(ARGV[5])
local now, right_now = time + ARGV[4], time + ARGV[4]
if moment > time - 1000000 and moment < time then now = moment + ARGV[4] end
local handlers, arg = {}, 8 + ARGV[7]
for n = 1, tonumber(ARGV[7]) do
  local at = 13 + (n - 1) * 9
  handlers[ARGV[7 + n]] = {due = KEYS[at + 1], leased = KEYS[at + 2], open = KEYS[at + 3], heads = KEYS[at + 4],
    run_due = KEYS[at + 5], run_leased = KEYS[at + 6],
    done = {[PROCESSED] = KEYS[at + 7], [DEAD] = KEYS[at + 8], [DISCARDED] = KEYS[at + 9]}}
end

-- The field of the marker that says that a handler is paused.
local function pause_field(handler)
  return 'paused\0' .. handler
end

-- What is paused is not a handler of a claim.
local function leave_out_paused()
  local names, fields = {}, {}
  for handler in pairs(handlers) do
    names[#names + 1] = handler
    fields[#fields + 1] = pause_field(handler)
  end
  for n, is_paused in ipairs(call('HMGET', meta, unpack(fields))) do
    if is_paused then handlers[names[n]] = nil end
  end
end

local function handler_of(key)
  return string.sub(key, 1, string.find(key, '\0', 1, true) - 1)
end

-- Numbers as Redis reads them. The same one is often asked for again.
local last_number, last_text
local function integer(number)
  if number ~= last_number then
    last_number, last_text = number, string.format('%.0f', number)
  end
  return last_text
end

-- A message's place among the claimable: its number first, so that equal times are in order.
local function member_of(s)
  if not s.member then s.member = struct.pack('>I6', s.seq) .. s.key end
  return s.member
end

-- What every script begins with. KEYS: the sixteen of the shard, then six for each handler.
-- ARGV: version, shards, shard, microseconds to add to the clock, the moment by this server's clock that
-- is to be now if it has just been (0: now), channel, handlers, their names.
local meta, ids, log, body, errors, results, counts, dead = unpack(KEYS, 1, 8)
local done = {[2] = KEYS[9], [3] = KEYS[10], [4] = KEYS[11]}
local late, statics, runs, blobs, places = unpack(KEYS, 12, 16)
local PENDING, LEASED, PROCESSED, DEAD, DISCARDED = 0, 1, 2, 3, 4
-- What dead messages that hold up their ordering key are counted as, too.
local BLOCKING = 5
local HAS_ERROR, HAS_RESULT, BLOCKS = 1, 2, 4
local call = redis.call

local marker = call('HMGET', meta, 'version', 'shards', 'shard', 'finished_at')
if not marker[1] then
  return redis.error_reply('INBOXMISSING ' .. call('EXISTS', ids, log))
end
if marker[1] ~= ARGV[1] or marker[2] ~= ARGV[2] or marker[3] ~= ARGV[3] then
  return redis.error_reply('INBOXVERSION ' .. marker[1] .. ' ' .. tostring(marker[2]) .. ' ' .. tostring(marker[3]))
end
local clock = call('TIME')
local time, moment = clock[1] * 1000000 + clock[2], tonumber(ARGV[5])
local now, right_now = time + ARGV[4], time + ARGV[4]
if moment > time - 1000000 and moment < time then now = moment + ARGV[4] end
local handlers, arg = {}, 8 + ARGV[7]
for n = 1, tonumber(ARGV[7]) do
  local at = 16 + (n - 1) * 6
  handlers[ARGV[7 + n]] = {due = KEYS[at + 1], leased = KEYS[at + 2], open = KEYS[at + 3], heads = KEYS[at + 4],
    run_due = KEYS[at + 5], run_leased = KEYS[at + 6]}
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

-- Another after each restart and fail-over, which may have forgotten what was written.
local function server_life()
  return string.match(call('INFO', 'replication'), 'master_replid:(%w+)')
end

-- Where messages are whose ids belong to this shard, and which have gone to that of their ordering
-- key. An entry says which shard is to be asked, not that the message is there; behind it there may be the mark of a
-- removal that is under way.

local function noted_shards(keys)
  if ARGV[2] == '1' then return {} end
  return call('HMGET', places, unpack(keys))
end

-- The shard that a note says, for what is sent there now: a removal that has marked the note as its own leaves it.
local function shard_of_note(key, note)
  if tonumber(note) then return tonumber(note) end
  local shard = string.match(note, '^(%d+) ')
  if shard then call('HSET', places, key, shard) end
  return tonumber(shard)
end

local function noted_shard(key)
  local note = ARGV[2] ~= '1' and call('HGET', places, key)
  return note and shard_of_note(key, note)
end

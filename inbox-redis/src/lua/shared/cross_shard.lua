-- Where messages are whose ids belong to this shard, and which have gone to that of their ordering
-- key. An entry says which shard is to be asked, not that the message is there.

local function noted_shards(keys)
  if ARGV[2] == '1' then return {} end
  return call('HMGET', places, unpack(keys))
end

local function noted_shard(key)
  local place = ARGV[2] ~= '1' and call('HGET', places, key)
  return place and tonumber(place)
end

-- KEYS: meta and all others of one shard, as for the other scripts. ARGV: what to do, version,
-- shards, shard. Answers 'ready', 'made', 'missing' or what was found instead.
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'hash' and kind ~= 'none' then return {'foreign', kind} end
local found = redis.call('HMGET', KEYS[1], 'inbox', 'version', 'shards', 'shard')
if kind == 'none' then
  for n = 2, #KEYS do
    local other = redis.call('TYPE', KEYS[n]).ok
    if other ~= 'none' then return {'foreign', other} end
  end
  if ARGV[1] ~= 'create' then return {'missing'} end
  redis.call('HSET', KEYS[1], 'inbox', 'inbox-redis', 'version', ARGV[2], 'shards', ARGV[3], 'shard', ARGV[4])
  return {'made'}
end
if found[1] ~= 'inbox-redis' then return {'foreign', kind} end
if not found[2] or not found[3] or not found[4] then return {'incomplete', found[2] or ''} end
return {'found', found[2], found[3], found[4]}

-- KEYS: meta and all others of one shard, as for the other scripts. ARGV: what to do, version, the oldest
-- version whose builds work with that, shards, shard. Answers 'made', 'missing' or what was found instead.
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'hash' and kind ~= 'none' then return {'foreign', kind} end
local found = redis.call('HMGET', KEYS[1], 'inbox', 'version', 'works_from', 'shards', 'shard')
if kind == 'none' then
  for n = 2, #KEYS do
    local other = redis.call('TYPE', KEYS[n]).ok
    if other ~= 'none' then return {'foreign', other} end
  end
  if ARGV[1] ~= 'create' then return {'missing'} end
  redis.call('HSET', KEYS[1], 'inbox', 'inbox-redis', 'version', ARGV[2], 'works_from', ARGV[3],
    'shards', ARGV[4], 'shard', ARGV[5])
  return {'made'}
end
if found[1] ~= 'inbox-redis' then return {'foreign', kind} end
for n = 2, 5 do
  if not found[n] then return {'incomplete'} end
end
return {'found', found[2], found[3], found[4]}

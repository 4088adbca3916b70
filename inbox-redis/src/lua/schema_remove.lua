-- KEYS: meta and all others of one shard, as for the other scripts, and of its handlers. ARGV: whether to
-- remove them, version, the fields of `counts` of which the handlers were read. Answers 'missing', 'removed', 'found'
-- with its version and the fields of `counts`, each with a handler, if it is not to be removed, or a newer one, or has
-- other handlers; or what was found instead.
local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'none' then return {'missing'} end
if kind ~= 'hash' or redis.call('HGET', KEYS[1], 'inbox') ~= 'inbox-redis' then return {'foreign', kind} end
local version = tonumber(redis.call('HGET', KEYS[1], 'version') or 0) or 0
if ARGV[1] ~= '1' or version > tonumber(ARGV[2]) or has_others(KEYS[7], 3) then
  return {'found', version, redis.call('HKEYS', KEYS[7])}
end
for n = 1, #KEYS do redis.call('UNLINK', KEYS[n]) end
return {'removed'}

end
if step() then return {'more'} end
redis.call('HSET', meta, 'version', ARGV[1], 'works_from', ARGV[2])
return {'done'}

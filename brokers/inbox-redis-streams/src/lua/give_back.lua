-- Makes entries of a consumer look idle, so that others may claim them at once. KEYS: the stream. ARGV: group,
-- consumer, for how long they are to look idle (milliseconds), the first id, how many. Answers the last id, if
-- there may be more.
local pending = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[4], '+', ARGV[5], ARGV[2])
for _, entry in ipairs(pending) do
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, entry[1], 'IDLE', ARGV[3], 'JUSTID')
end
if #pending < tonumber(ARGV[5]) then
    return false
end
return pending[#pending][1]

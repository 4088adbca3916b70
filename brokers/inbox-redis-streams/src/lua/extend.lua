-- Keeps entries that a consumer works on from being claimed by others: they are idle from now on. What
-- another one has claimed meanwhile is left to it. KEYS: the stream. ARGV: group, consumer, ids.
for place = 3, #ARGV do
    local id = ARGV[place]
    if #redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1, ARGV[2]) > 0 then
        redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, id, 'JUSTID')
    end
end

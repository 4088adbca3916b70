-- Removes consumers with nothing pending: the one named, and those that a process which was killed has
-- left. KEYS: the stream. ARGV: group, consumer, what made-up names begin with, how long those of others
-- have to be idle (milliseconds).
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
    local of = {}
    for place = 1, #consumer, 2 do
        of[consumer[place]] = consumer[place + 1]
    end
    local is_left = of.idle > tonumber(ARGV[4]) and string.sub(of.name, 1, #ARGV[3]) == ARGV[3]
    if of.pending == 0 and (of.name == ARGV[2] or is_left) then
        redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], of.name)
    end
end

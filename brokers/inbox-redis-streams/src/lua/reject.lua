-- Writes a dead letter, and only then finishes its entry: an error ends the script where it happens, and what would
-- come behind it is not done. KEYS: the stream, that of the dead letters. ARGV: group, the entry's id, whether it is
-- to be deleted (1), then fields and values of the dead letter.
redis.call('XADD', KEYS[2], '*', unpack(ARGV, 4))
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
if ARGV[3] == '1' then
    redis.call('XDEL', KEYS[1], ARGV[2])
end

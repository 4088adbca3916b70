-- ARGV: how many. Answers the first of so many new sequence numbers, and the time.
local count_of = tonumber(ARGV[arg])
return {call('HINCRBY', meta, 'seq', count_of) - count_of + 1, time}

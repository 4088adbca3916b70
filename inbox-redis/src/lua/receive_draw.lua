-- ARGV: how many. Answers the first of so many new sequence numbers.
-- A server that has been restarted, or has taken over from another, may have forgotten the last draws.
-- It then has another replication id, and goes on far behind whatever was forgotten.
local FORGOTTEN = 2 ^ 30
local count_of = tonumber(ARGV[arg])
local life = server_life()
local before = call('HGET', meta, 'life')
if life and life ~= before then
  call('HSET', meta, 'life', life)
  if before then count_of = count_of + FORGOTTEN end
end
return call('HINCRBY', meta, 'seq', integer(count_of)) - ARGV[arg] + 1

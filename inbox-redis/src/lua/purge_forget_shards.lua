-- ARGV: a shard, and keys of messages that are no longer there.
local removed = 0
for at = arg + 1, #ARGV do
  if noted_shard(ARGV[at]) == tonumber(ARGV[arg]) then removed = removed + call('HDEL', places, ARGV[at]) end
end
return removed

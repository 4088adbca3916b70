-- ARGV: key, and the shard of its ordering key, of each message. Answers -1 for one that is here, else
-- the shard in which it is to be looked for and stored: that of the first copy.
local answers = {}
for at = arg, #ARGV, 2 do
  local key, place = ARGV[at], -1
  if not call('HGET', ids, key) then
    place = noted_shard(key)
    if not place then
      call('HSET', places, key, ARGV[at + 1])
      place = tonumber(ARGV[at + 1])
    end
  end
  answers[#answers + 1] = place
end
return answers

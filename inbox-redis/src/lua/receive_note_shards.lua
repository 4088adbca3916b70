-- ARGV: key, the shard of its ordering key, and fingerprint, of each message. Answers -1 for one that is
-- here, -3 if its fingerprint differs, else the shard in which it is to be looked for and stored: that of the
-- first copy.
local answers = {}
for at = arg, #ARGV, 3 do
  local key, place = ARGV[at], nil
  local known = load(key)
  if known then
    place = -1 - duplicate(known, ARGV[at + 2])
  else
    place = noted_shard(key)
    if not place then
      call('HSET', places, key, ARGV[at + 1])
      place = tonumber(ARGV[at + 1])
    end
  end
  answers[#answers + 1] = place
end
return answers

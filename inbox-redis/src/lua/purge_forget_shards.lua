-- ARGV: a shard, the mark of a removal, whether this is its end, and keys of messages that the shard has forgotten. At
-- first marks their notes that say this shard, and answers which they are. In the end removes those that have the
-- mark still.
local shard, is_end = ARGV[arg], ARGV[arg + 2] == '1'
local marked, keys = shard .. ' ' .. ARGV[arg + 1], {}
for at = arg + 3, #ARGV do
  local key = ARGV[at]
  local note = call('HGET', places, key)
  if is_end then
    if note == marked then call('HDEL', places, key) end
  elseif note and string.match(note, '^%d+') == shard then
    call('HSET', places, key, marked)
    keys[#keys + 1] = key
  end
end
return keys

-- ARGV: keys. Answers those that are here.
local keys, here = {unpack(ARGV, arg)}, {}
for n, raw in ipairs(call('HMGET', ids, unpack(keys))) do
  if raw then here[#here + 1] = keys[n] end
end
return here

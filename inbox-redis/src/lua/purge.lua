-- ARGV: state, age, keys. Answers how many were in that state for so long and are gone, the keys that
-- other shards may have notes of, those of the keys that are left for another script, and the handlers whose
-- histories are.
local state, cutoff = tonumber(ARGV[arg]), now - ARGV[arg + 1]
local keys, list = {}, {}
for at = arg + 2, #ARGV do keys[#keys + 1] = ARGV[at] end
load_all(keys)
for _, key in ipairs(keys) do
  local s = states[key] or nil
  if s and s.state == state and s.at <= cutoff then list[#list + 1] = s end
end
local share, left = share_of(list, true)
forget_all(share)
write()
return {#share, gone, left, sweep(state, LOOKS)}

-- ARGV: state, age, keys. Answers how many were in that state for so long and are gone, and the keys that
-- other shards may have notes of.
local state, cutoff = tonumber(ARGV[arg]), now - ARGV[arg + 1]
local keys, list = {}, {}
for at = arg + 2, #ARGV do keys[#keys + 1] = ARGV[at] end
load_all(keys)
for _, key in ipairs(keys) do
  local s = states[key] or nil
  if s and s.state == state and s.at <= cutoff then list[#list + 1] = s end
end
forget_all(list)
write()
sweep(state)
return {#list, gone}

-- ARGV: keys. Answers the time, and of those that are here what `list.lua` answers of each; 0 as the number of
-- one whose state cannot be read.
local keys, answer = {}, {}
for at = arg, #ARGV do keys[#keys + 1] = ARGV[at] end
load_all(keys)
for _, key in ipairs(keys) do
  local s = states[key] or nil
  if s then answer[#answer + 1] = {s.seq or 0, full_row(s)} end
end
return {now, answer}

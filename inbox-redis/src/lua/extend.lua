-- ARGV: length, then key, number and token of each lease. Answers the new ends, or 0.
local length, keys, answers = tonumber(ARGV[arg]), {}, {}
for at = arg + 1, #ARGV, 3 do keys[#keys + 1] = ARGV[at] end
load_all(keys)
for n, key in ipairs(keys) do
  local s, at = states[key] or nil, arg + 3 * n
  if s and s.state == LEASED and s.seq == tonumber(ARGV[at - 1]) and s.token == tonumber(ARGV[at]) then
    s.at = now + length
    save(s)
    move(handler_of(key), 'leased', true, s, integer(s.at))
    answers[n] = s.at
  else
    answers[n] = 0
  end
end
write()
return answers

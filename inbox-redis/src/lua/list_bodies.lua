-- ARGV: keys. Answers the body and the result of each.
local answer = {}
for at = arg, #ARGV do
  local s = load(ARGV[at])
  answer[#answer + 1] = {s and body_of(s), call('HGET', results, ARGV[at])}
end
return answer

-- ARGV: keys. Answers the body, the result and the history of each, and nothing of what is gone.
local answer = {}
for at = arg, #ARGV do
  local s = load(ARGV[at])
  answer[#answer + 1] = s and {body_of(s), call('HGET', results, ARGV[at]), history_of(s)} or {}
end
return answer

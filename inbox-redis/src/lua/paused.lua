-- Answers the handlers that are paused here.
local answer = {}
for _, field in ipairs(call('HKEYS', meta)) do
  if string.sub(field, 1, 7) == pause_field('') then answer[#answer + 1] = string.sub(field, 8) end
end
return answer

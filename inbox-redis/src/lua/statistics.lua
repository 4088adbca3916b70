-- ARGV: up to how many due messages are counted. Answers, for each handler of the call, counts, the time,
-- and the longest-due message.
local due_counted = tonumber(ARGV[arg])
local answer = {}

local function count_due(keys)
  local due = call('ZCOUNT', keys.due, 0, integer(now)) + call('ZCOUNT', keys.leased, 0, integer(now))
  for _, set in ipairs({keys.run_due, keys.run_leased}) do
    local seen = 0
    while due < due_counted do
      local members = call('ZRANGEBYSCORE', set, 0, integer(now), 'LIMIT', seen, 16)
      for _, member in ipairs(members) do
        local run = run_at(struct.unpack('>I6', member))
        due = due + (run and run.n or 0)
      end
      if #members < 16 then break end
      seen = seen + 16
    end
  end
  return math.min(due, due_counted)
end

for handler, keys in pairs(handlers) do
  local one = {handler}
  for state = PENDING, BLOCKING do
    one[#one + 1] = tonumber(call('HGET', counts, handler .. '\0' .. state) or 0)
  end
  one[8] = call('ZCOUNT', keys.leased, 0, integer(now)) + call('ZCOUNT', keys.leased, integer(-now), '(0')
  for _, member in ipairs(call('ZRANGEBYSCORE', keys.run_leased, '-inf', integer(now))) do
    local run = run_at(struct.unpack('>I6', member))
    one[8] = one[8] + (run and run.n or 0)
  end
  local first
  for _, set in ipairs({keys.due, keys.leased, keys.run_due, keys.run_leased}) do
    local head = call('ZRANGEBYSCORE', set, 0, integer(now), 'WITHSCORES', 'LIMIT', 0, 1)
    if head[1] and (not first or tonumber(head[2]) < first[1] or (tonumber(head[2]) == first[1] and head[1] < first[2])) then
      first = {tonumber(head[2]), head[1]}
    end
  end
  local s = first and (#first[2] == 6 and run_at(struct.unpack('>I6', first[2])) or load(string.sub(first[2], 7)))
  one[9] = now
  one[10] = first and first[1] or -1
  one[11] = first and (struct.unpack('>I6', first[2])) or -1
  one[12] = s and s.accepted or -1
  one[13] = call('HGET', meta, pause_field(handler)) and 1 or 0
  one[14] = count_due(keys)
  answer[#answer + 1] = one
end
return answer

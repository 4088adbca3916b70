-- ARGV: length, then key, number and token of each lease. Answers the new ends, or 0.
local length, list, keys, answers = tonumber(ARGV[arg]), {}, {}, {}
for at = arg + 1, #ARGV, 3 do
  list[#list + 1] = {key = ARGV[at], seq = tonumber(ARGV[at + 1]), token = tonumber(ARGV[at + 2])}
end
local whole = whole_runs(list)
for run in pairs(whole) do
  run.at = now + length
  save_run(run)
  index_run(run, 'run_leased', run.at)
end
for _, one in ipairs(list) do
  if not whole[one.run] then keys[#keys + 1] = one.key end
end
load_all(keys)
for n, one in ipairs(list) do
  local s = not whole[one.run] and states[one.key]
  if whole[one.run] then
    answers[n] = now + length
  elseif s and s.state == LEASED and s.seq == one.seq and s.token == one.token then
    s = own(s)
    s.at = now + length
    local handler = handler_of(s.key)
    if has_flag(s, BEHIND) and call('HGET', handlers[handler].heads, s.okey) == member_of(s) then count_start(s) end
    save(s)
    move(handler, 'leased', true, s, leased_score(s))
    answers[n] = s.at
  else
    answers[n] = 0
  end
end
write()
return answers

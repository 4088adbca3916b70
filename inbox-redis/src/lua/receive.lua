-- ARGV: the first sequence number, or 0 to draw here; then for each message its place, key, due
-- time, ordering key, body, home shard and guard (both empty for a message that is at home).
local base = tonumber(ARGV[arg])
local messages, keys = {}, {}
for at = arg + 1, #ARGV, 7 do
  local m = {place = tonumber(ARGV[at]), key = ARGV[at + 1], due = ARGV[at + 2], okey = ARGV[at + 3], whole = ARGV[at + 4],
    home = tonumber(ARGV[at + 5]), guard = tonumber(ARGV[at + 6])}
  messages[#messages + 1] = m
  keys[#keys + 1] = m.key
end
load_all(keys)
if base == 0 then base = call('HINCRBY', meta, 'seq', #messages) - #messages + 1 end
local answers, bodies = {}, {}
for n, m in ipairs(messages) do
  local known = states[m.key] or nil
  if m.guard and call('ZSCORE', fences, m.key .. '\0' .. integer(m.guard)) then
    answers[n] = 3
  elseif not known then
    insert(m.key, base + m.place, m.due, m.okey, m.whole, m.home, m.guard)
    bodies[#bodies + 1] = m.key
    bodies[#bodies + 1] = m.whole
    answers[n] = 1
  elseif known.state == GUARD then
    answers[n] = {known.shard, known.guard}
  else
    answers[n] = 0
  end
end
put('HSET', body, bodies)
write()
return answers

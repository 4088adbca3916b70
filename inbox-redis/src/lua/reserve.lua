-- At the home shards of messages that belong to other shards: ARGV is key and shard of each.
-- Answers 0 for one that is stored here, else the shard where it is or will be, and its guard.
local keys = {}
for at = arg, #ARGV, 2 do keys[#keys + 1] = ARGV[at] end
load_all(keys)
local answers = {}
for n, key in ipairs(keys) do
  local known = states[key] or nil
  if not known then
    local guard = call('HINCRBY', meta, 'guard', 1)
    known = {key = key, state = GUARD, shard = tonumber(ARGV[arg + 2 * n - 1]), guard = guard}
    call('HSET', ids, key, cmsgpack.pack(GUARD, known.shard, guard))
    states[key] = known
  end
  if known.state == GUARD then
    answers[n] = {known.shard, known.guard}
  else
    answers[n] = 0
  end
end
return answers

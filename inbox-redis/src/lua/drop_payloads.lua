-- ARGV: state, age, keys. Drops payloads and results of those that are in that state for so long, and
-- answers how many had either, the keys that other shards may have notes of (none), those of the keys that are
-- left for another script, and the handlers whose marks are. A mark is kept for each handler: up to there nothing
-- has either, and what becomes final later stands behind it.
local state, cutoff = tonumber(ARGV[arg]), now - ARGV[arg + 1]
local keys, list, of_run = {}, {}, {}
for at = arg + 2, #ARGV do keys[#keys + 1] = ARGV[at] end
load_all(keys)
for _, key in ipairs(keys) do
  local s = states[key] or nil
  if s and s.state == state and s.at <= cutoff and has_content(s) then list[#list + 1] = s end
end
local share, left = share_of(list, false)
for _, s in ipairs(share) do
  if s.run then of_run[s.run] = (of_run[s.run] or 0) + 1 end
end
for run, n in pairs(of_run) do
  if n == run.n then
    call('HDEL', blobs, integer(run.base))
    run.dropped, run.parts = true, nil
    save_run(run)
  else
    take_apart(run)
  end
end
for _, s in ipairs(share) do
  s = states[s.key]
  if has_content(s) then
    if has_flag(s, HAS_RESULT) then call('HDEL', results, s.key) end
    set_flag(s, HAS_RESULT, false)
    call('HDEL', body, s.key)
    s.bytes = -1
    save(s)
  end
end
write()
return {#share, gone, left, mark_dropped(state, cutoff, LOOKS)}

-- ARGV: whether to drop payloads; how long to keep what was processed, or -1; the number of
-- commands to run beside (-1: a plain settlement), each as its number of words and the words; then for each settlement
-- key, number, token, outcome and its two values.
local drop, keep = ARGV[arg] == '1', tonumber(ARGV[arg + 1])
local commands, at = {}, arg + 3
for n = 1, tonumber(ARGV[arg + 2]) do
  local words = tonumber(ARGV[at])
  commands[n] = {}
  for word = 1, words do commands[n][word] = ARGV[at + word] end
  at = at + words + 1
end
local list, keys = {}, {}
for first = at, #ARGV, 6 do
  local one = {key = ARGV[first], seq = tonumber(ARGV[first + 1]), token = tonumber(ARGV[first + 2]), outcome = ARGV[first + 3],
    value = ARGV[first + 4], flag = ARGV[first + 5]}
  list[#list + 1] = one
  keys[#keys + 1] = one.key
end
load_all(keys)
local replies = {}
if ARGV[arg + 2] ~= '-1' then
  local s = states[keys[1]] or nil
  if not s or s.seq ~= list[1].seq or s.token ~= list[1].token or s.state ~= LEASED then return {{0}, replies, {}} end
  for n, words in ipairs(commands) do
    local reply = redis.pcall(unpack(words))
    if type(reply) == 'table' and reply.err then
      return redis.error_reply('INBOXCOMMAND ' .. n .. ' ' .. string.match(reply.err, '^%S+'))
    end
    replies[n] = reply
  end
end
local answers, bodies, errs, done_any = {}, {}, {}, 0
for n, one in ipairs(list) do
  local s = states[one.key] or nil
  if not s or s.seq ~= one.seq or s.token ~= one.token then
    answers[n] = 0
  elseif s.state ~= LEASED then
    answers[n] = 1
  else
    answers[n] = 1
    local handler = handler_of(s.key)
    count(handler, LEASED, -1)
    move(handler, 'leased', false, s)
    local open = true
    if one.outcome == 'release' then
      s.state, s.started = PENDING, math.max(s.started - 1, 0)
    else
      s.finished = s.finished + (one.outcome == 'corrupt' and 0 or 1)
      if one.outcome == 'retry' then
        s.state, s.due = PENDING, now + one.flag
      elseif one.outcome == 'processed' then
        finish(s, PROCESSED)
        done_any, open = done_any + 1, false
        if one.flag == '1' then
          call('HSET', results, s.key, one.value)
          set_flag(s, HAS_RESULT, true)
        end
        if drop then
          bodies[#bodies + 1] = s.key
          s.bytes = -1
        end
      else
        finish(s, DEAD)
        open = one.flag == '1' and s.okey ~= nil
        set_flag(s, BLOCKS, open)
        if one.outcome == 'corrupt' then
          s.token = math.max(s.token + 1, now)
          s.started = math.max(s.started - 1, 0)
        end
      end
      if one.outcome ~= 'processed' then
        errs[#errs + 1] = s.key
        errs[#errs + 1] = one.value
        set_flag(s, HAS_ERROR, true)
      end
    end
    count(handler, s.state, 1)
    save(s)
    if s.okey then
      if not open then call('ZREM', handlers[handler].open, open_member(s)) end
      touch(handler, s.okey)
    elseif s.state == PENDING then
      waiting(handler, s)
    end
  end
end
put('HDEL', body, bodies)
put('HSET', errors, errs)
local guards = {}
if keep >= 0 and done_any > 0 then trim(now - keep, 2 * done_any, guards) end
write()
return {answers, replies, guards}

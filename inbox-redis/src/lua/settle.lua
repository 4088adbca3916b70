-- ARGV: whether to drop payloads; how long to keep what was processed, or -1; how many entries a history
-- keeps; the number of commands to run with it (-1: a plain settlement), each as its number of words and
-- the words; then for each settlement its key and, packed, outcome, number, token, a number of the
-- outcome's own, and how many bytes of its text the history keeps; behind it, unless it is processed
-- without a result, the outcome's text.
local drop, keep, kept_entries = ARGV[arg] == '1', tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
local DONE, RESULT, RETRY, DIED, RELEASE, CORRUPT, DEFER, DEFER_WITH_ERROR = 0, 1, 2, 3, 4, 5, 6, 7
local alone = ARGV[arg + 3] == '-1'
local commands, at = {}, arg + 4
for n = 1, tonumber(ARGV[arg + 3]) do
  local words = tonumber(ARGV[at])
  commands[n] = {}
  for word = 1, words do commands[n][word] = ARGV[at + word] end
  at = at + words + 1
end
local list, whole = {}, {}

-- The common case: all are processed, and are whole runs in the order in which they were claimed.
local function all_whole()
  local found, run, left, next_seq = {}, nil, 0, 0
  for place = at, #ARGV, 2 do
    if string.byte(ARGV[place + 1]) ~= DONE then return nil end
    local _, seq, token = struct.unpack('>BI6I7', ARGV[place + 1])
    if left == 0 then
      run = run_of(seq)
      if not run or found[run] or run.state ~= LEASED or run.token ~= token then return nil end
      left, next_seq, found[run] = run.n, run.base, true
    end
    if seq < next_seq or token ~= run.token or not is_in(run, seq) then return nil end
    left, next_seq = left - 1, seq + 1
  end
  return left == 0 and found or nil
end

local plain = alone and #ARGV > at and (#ARGV - at) % 2 == 1 and all_whole()
local answers = {}
if plain then
  whole = plain
  for n = 1, (#ARGV - at + 1) / 2 do answers[n] = 1 end
  at = #ARGV
end
while at < #ARGV do
  local one = {key = ARGV[at]}
  one.outcome, one.seq, one.token, one.flag, one.short = struct.unpack('>BI6I7I7I2', ARGV[at + 1])
  at = at + 2
  if one.outcome ~= DONE then
    one.alone, one.value, at = true, ARGV[at], at + 1
  end
  list[#list + 1] = one
end
local replies = {}
if not alone then
  local s = load(list[1].key)
  if not s or s.seq ~= list[1].seq or s.token ~= list[1].token or s.state ~= LEASED then return {{0}, replies, gone} end
  for n, words in ipairs(commands) do
    local reply = redis.pcall(unpack(words))
    if type(reply) == 'table' and reply.err then
      return redis.error_reply('INBOXCOMMAND ' .. n .. ' ' .. string.match(reply.err, '^%S+'))
    end
    replies[n] = reply
  end
end
local bodies, errs, done_any, keys = {}, {}, 0, {}

local function keep_error(s, one)
  errs[#errs + 1] = s.key
  errs[#errs + 1] = one.value
  set_flag(s, HAS_ERROR, true)
end

-- Adds this end of its attempt to what became of the earlier ones, of which the newest are kept.
local ENDS = {[RETRY] = 'retried', [DIED] = 'dead', [DEFER_WITH_ERROR] = 'deferred'}
local function keep_attempt(s, one)
  local line = string.format('{"attempt":%s,"replays":%s,"worker":%s,"leased_at":%s,"ended_at":%s,"end":"%s","error":%s}',
    integer(s.started), integer(s.replays), cjson.encode(s.worker), s.leased and integer(s.leased) or 'null', integer(now), ENDS[one.outcome],
    cjson.encode(string.sub(one.value, 1, one.short)))
  errs[#errs + 1] = history_field(s.key)
  errs[#errs + 1] = with_entry(s, line, kept_entries)
end

if not plain then whole = whole_runs(list) end
for run in pairs(whole) do
  count(run.handler, LEASED, -run.n)
  count(run.handler, PROCESSED, run.n)
  index_run(run, 'run_leased')
  finish_run(run)
  run.finished = run.finished + 1
  if drop then
    call('HDEL', blobs, integer(run.base))
    run.dropped, run.parts = true, nil
  end
  save_run(run)
  done_any = done_any + run.n
end
for _, one in ipairs(list) do
  if not whole[one.run] then keys[#keys + 1] = one.key end
end
load_all(keys)
for n, one in ipairs(list) do
  local s = not whole[one.run] and states[one.key] or nil
  if whole[one.run] then
    answers[n] = 1
  elseif not s or s.seq ~= one.seq or s.token ~= one.token then
    answers[n] = 0
  elseif s.state ~= LEASED then
    answers[n] = 1
  else
    s = own(s)
    answers[n] = 1
    local handler = handler_of(s.key)
    count(handler, LEASED, -1)
    move(handler, 'leased', false, s)
    count_start(s)
    if ENDS[one.outcome] then keep_attempt(s, one) end
    if ENDS[one.outcome] or one.outcome == CORRUPT then keep_error(s, one) end
    local open = true
    local put_off = one.outcome == DEFER or one.outcome == DEFER_WITH_ERROR
    if one.outcome == RELEASE or put_off then
      s.state, s.started = PENDING, math.max(s.started - 1, 0)
      if put_off then s.due = now + one.flag end
    else
      s.finished = s.finished + (one.outcome == CORRUPT and 0 or 1)
      if one.outcome == RETRY then
        s.state, s.due = PENDING, now + one.flag
      elseif one.outcome == DONE or one.outcome == RESULT then
        finish(s, PROCESSED)
        done_any, open = done_any + 1, false
        if one.outcome == RESULT then
          call('HSET', results, s.key, one.value)
          set_flag(s, HAS_RESULT, true)
        end
        if drop then
          bodies[#bodies + 1] = s.key
          s.bytes = -1
        end
      else
        finish(s, DEAD)
        open = one.flag == 1 and s.okey ~= nil
        set_flag(s, BLOCKS, open)
        if open then count(handler, BLOCKING, 1) end
        if one.outcome == CORRUPT then
          s.token = math.max(s.token + 1, right_now)
          s.started = math.max(s.started - 1, 0)
        end
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
write()
-- Deletes what was processed long enough before, when all of the settlement is written: whatever goes wrong here
-- leaves that whole. It looks at a few times as much, so that it gets past what was replayed without keeping the
-- settlement waiting; how much the settlement itself had to do does not count, since nothing would be deleted otherwise.
if keep >= 0 and done_any > 0 then
  local limit = 2 * done_any
  local most = 64 + 4 * limit
  worked = 0
  forget_all((finished_by(PROCESSED, math.min(now - keep, finished_at - 1), limit, false, {}, most)))
  write()
  sweep(PROCESSED, most)
end
return {answers, replies, gone}

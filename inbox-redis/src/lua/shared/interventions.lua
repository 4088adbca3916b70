-- What replays, discards and other changes of single messages have in common.

-- The state that a message is shown in.
local function state_of(s)
  if s.state == LEASED and s.at <= now then return PENDING end
  return s.state
end

-- Does `act` to the messages of the keys behind the first seven arguments: a bit for each state in which
-- to do it; the new payload and the new headers, behind a `1`, or nothing; the new due time; what this is
-- called, who signs, if it is not empty, and how many entries a history keeps. Answers
-- what each came to, of the first of them, or of all if that does not take too long; the keys that are gone and that
-- other shards may have notes of; and what was now.
local function intervene(act)
  local mask, answers = tonumber(ARGV[arg]), {}
  local function given(text) return text ~= '' and string.sub(text, 2) or nil end
  local edit = {payload = given(ARGV[arg + 1]), headers = given(ARGV[arg + 2]), due = ARGV[arg + 3]}
  local kind, by, kept_entries = ARGV[arg + 4], ARGV[arg + 5], tonumber(ARGV[arg + 6])
  local function sign(s)
    local line = string.format('{"intervention":"%s","at":%s,"by":%s}', kind, integer(now), cjson.encode(by))
    call('HSET', errors, history_field(s.key), with_entry(s, line, kept_entries))
    save(s)
  end
  for at = arg + 7, #ARGV do
    if worked >= MOST_WORK then break end
    worked = worked + 30
    local s, answer = load(ARGV[at]), nil
    if not s then
      answer = {'absent'}
    elseif s.state == -1 then
      answer = {'corrupt'}
    elseif math.floor(mask / 2 ^ state_of(s)) % 2 == 0 then
      answer = {'state', state_of(s)}
    else
      answer = act(s, edit)
      if by ~= '' and answer[1] == 'done' then sign(load(ARGV[at])) end
    end
    answers[#answers + 1] = answer
  end
  write()
  return {answers, gone, now}
end

-- What replays and discards have in common.

-- The state that a message is shown in.
local function state_of(s)
  if s.state == LEASED and s.at <= now then return PENDING end
  return s.state
end

-- Does `act` to the messages of the keys behind the first three arguments: a bit for each state in which
-- to do it, whether there is a new payload, the payload. Answers what each came to.
local function intervene(act)
  local mask, answers = tonumber(ARGV[arg]), {}
  local payload = ARGV[arg + 1] == '1' and ARGV[arg + 2] or nil
  for at = arg + 3, #ARGV do
    local s, answer = load(ARGV[at]), nil
    if not s then
      answer = {'absent'}
    elseif s.state == -1 then
      answer = {'corrupt'}
    elseif math.floor(mask / 2 ^ state_of(s)) % 2 == 0 then
      answer = {'state', state_of(s)}
    else
      answer = act(s, payload)
    end
    answers[#answers + 1] = answer
  end
  write()
  return answers
end

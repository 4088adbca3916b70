-- ARGV: key. Answers nothing when it is not here.
local s = load(ARGV[arg])
if not s then return {} end
local result = s.flags and has_flag(s, HAS_RESULT) and call('HGET', results, s.key)
return {now, full_row(s), body_of(s), result, history_of(s)}

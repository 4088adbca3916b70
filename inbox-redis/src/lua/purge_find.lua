-- ARGV: state, age, limit, whether only those with a payload or a result; then handlers, each with the
-- entry of its history up to which it was looked at: what purge would delete of the call's handlers,
-- longest-finished first. Answers also the handlers whose history begins with entries that mean nothing,
-- and, unless it looked at all that it was to, how far it has come.
local state, cutoff, limit = tonumber(ARGV[arg]), now - ARGV[arg + 1], tonumber(ARGV[arg + 2])
local behind, answer = {}, {}
for at = arg + 4, #ARGV, 2 do behind[ARGV[at]] = ARGV[at + 1] end
local found, spent, reached = finished_by(state, cutoff, limit, ARGV[arg + 3] == '1', behind, LOOKS)
for n, s in ipairs(found) do answer[n] = {s.at, full_row(s)} end
return {now, answer, spent, reached or {}}

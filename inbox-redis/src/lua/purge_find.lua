-- ARGV: state, age, limit, whether only those with a payload or a result: what purge would delete of the
-- call's handlers, longest-finished first.
local state, cutoff, limit = tonumber(ARGV[arg]), now - ARGV[arg + 1], tonumber(ARGV[arg + 2])
local answer = {}
if cutoff >= 0 then
  for _, s in ipairs(finished_by(state, cutoff, limit, ARGV[arg + 3] == '1')) do
    answer[#answer + 1] = {s.at, full_row(s)}
  end
end
return {now, answer}

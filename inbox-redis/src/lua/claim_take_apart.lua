-- ARGV: the first number of a run. Makes single messages of it.
local run = run_at(tonumber(ARGV[arg]))
if run then take_apart(run) end
return 1

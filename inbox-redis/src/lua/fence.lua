-- ARGV: key, guard. Answers 1 when the message is here; else makes sure that whoever reserved
-- that guard can no longer store it here.
local s = load(ARGV[arg])
if s and s.state ~= GUARD then return 1 end
fence_off(ARGV[arg], ARGV[arg + 1])
return 0

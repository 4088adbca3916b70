-- Removes the shard with all that is in it, and answers how many of its keys there were.
local removed = 0
for n = 1, #KEYS do removed = removed + call('UNLINK', KEYS[n]) end
return removed

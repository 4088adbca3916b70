-- What every step of a migration begins with. KEYS: the thirteen of the shard, then nine for each of its
-- handlers. ARGV: the version that the step makes, the oldest version whose builds work with that.
local meta = KEYS[1]
local found, made = tonumber(redis.call('HGET', meta, 'version')), tonumber(ARGV[1])
-- Another process was quicker.
if found and found >= made then return {'done'} end
if found ~= made - 1 then return redis.error_reply('INBOXVERSION ' .. tostring(found)) end
-- What the step does. What it has written stays if it fails, so it has to do no harm when repeated. It may
-- do a part of its work and answer true: it is called again then, and others get their turn in between.
local function step()

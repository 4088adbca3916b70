-- What every step of a migration begins with. KEYS: the thirteen of the shard, then nine for each of its
-- handlers. ARGV: the version that the step makes, the oldest version whose builds work with that, the fields of
-- `counts` of which the handlers were read. Answers the fields that are there now if another handler is among them.
local meta = KEYS[1]
local found, made = tonumber(redis.call('HGET', meta, 'version')), tonumber(ARGV[1])
-- Another process was quicker.
if found and found >= made then return {'done'} end
if found ~= made - 1 then return redis.error_reply('INBOXVERSION ' .. tostring(found)) end
if has_others(KEYS[7], 3) then return {'others', redis.call('HKEYS', KEYS[7])} end
-- What the step does. What it has written stays if it fails, so it has to do no harm when repeated. It may
-- do a part of its work and answer true: it is called again then, and others get their turn in between.
local function step()

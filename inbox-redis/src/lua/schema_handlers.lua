-- Whether fields of `counts` are of other handlers than those from this place of ARGV on: keys of these are not
-- among KEYS.
local function has_others(counts, place)
  local known = {}
  local function name_of(field)
    return string.sub(field, 1, (string.find(field, '\0', 1, true) or 0) - 1)
  end
  for at = place, #ARGV do known[name_of(ARGV[at])] = true end
  for _, field in ipairs(redis.call('HKEYS', counts)) do
    if not known[name_of(field)] then return true end
  end
  return false
end


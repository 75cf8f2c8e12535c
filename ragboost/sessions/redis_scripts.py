"""The scripts that change sessions in Redis, each of them atomic.

Keys behind the prefix: `session:ID` a hash, `turns:ID` a list, `deleted:ID` after a deletion,
`owner:OWNER` the owner's ids by creation, and over all sessions `by_use`, `owners`, `sizes` and
`bytes`, the sum of the sizes. Sessions expire by themselves; what is kept about all of them follows
when it is trimmed.
"""

_COMMON = """
local prefix, now, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
local max_sessions, max_bytes = tonumber(ARGV[4]), tonumber(ARGV[5])
local id, owner = ARGV[6], ARGV[7]
local earliest = tonumber(now) - ttl
local function key(kind, name) return prefix .. kind .. (name and ':' .. name or '') end

local function drop(name)
  local whose = redis.call('HGET', key('owners'), name)
  if whose then redis.call('ZREM', key('owner', whose), name) end
  redis.call('DECRBY', key('bytes'), redis.call('HGET', key('sizes'), name) or 0)
  redis.call('HDEL', key('owners'), name)
  redis.call('HDEL', key('sizes'), name)
  redis.call('ZREM', key('by_use'), name)
  redis.call('DEL', key('session', name), key('turns', name))
end

local function turns_if_known()
  local found = redis.call('HMGET', key('session', id), 'owner', 'used_at', 'num_turns')
  if found[1] == owner and tonumber(found[2]) >= earliest then return tonumber(found[3]) end
end

local function use(added)
  redis.call('ZADD', key('by_use'), now, id)
  redis.call('HINCRBY', key('sizes'), id, added)
  redis.call('INCRBY', key('bytes'), added)
  local range = {'-inf', string.format('(%.6f', earliest), 'LIMIT', 0, 100}
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', key('by_use'), unpack(range))) do
    drop(name)
  end
  while redis.call('ZCARD', key('by_use')) > max_sessions
      or tonumber(redis.call('GET', key('bytes'))) > max_bytes do
    local oldest = redis.call('ZRANGE', key('by_use'), 0, 1)
    if oldest[1] == id then table.remove(oldest, 1) end
    if not oldest[1] then break end
    drop(oldest[1])
  end
  local ms = math.ceil(ttl * 1000)
  redis.call('PEXPIRE', key('session', id), ms)
  redis.call('PEXPIRE', key('turns', id), ms)
  for _, kind in ipairs({'by_use', 'owners', 'sizes', 'bytes'}) do
    redis.call('PEXPIRE', key(kind), 2 * ms)
  end
  redis.call('PEXPIRE', key('owner', owner), 2 * ms)
end
"""

_ADD = """
local function add(fields)
  redis.call('HSET', key('session', id), unpack(fields))
  redis.call('HSET', key('owners'), id, owner)
  redis.call('ZADD', key('owner', owner), redis.call('HGET', key('session', id), 'created_at'), id)
end
"""

CREATE = (
    _COMMON
    + _ADD
    + """
drop(id)
redis.call('DEL', key('deleted', id))
add({unpack(ARGV, 9)})
use(ARGV[8])
"""
)

RESTORE = (
    _COMMON
    + _ADD
    + """
local size, num_fields, num_turns = ARGV[8], tonumber(ARGV[9]), turns_if_known()
local fields, turns = {unpack(ARGV, 10, 9 + num_fields)}, 10 + num_fields
if num_turns then  -- repeated, since the response to the first attempt was lost
  local last = redis.call('LINDEX', key('turns', id), -1)
  return num_turns == #ARGV - turns + 1 and last == ARGV[#ARGV] and 1 or 0
end
if redis.call('EXISTS', key('deleted', id)) == 1 then return 0 end
drop(id)
add(fields)
for at = turns, #ARGV do redis.call('RPUSH', key('turns', id), ARGV[at]) end
use(size)
return 1
"""
)

APPEND = (
    _COMMON
    + """
local expected, turn, num_turns = tonumber(ARGV[8]), ARGV[9], turns_if_known()
if not num_turns then return 0 end
if num_turns == expected + 1 and redis.call('LINDEX', key('turns', id), -1) == turn then
  return 1  -- repeated, since the response to the first attempt was lost
end
if num_turns ~= expected then return 0 end
redis.call('RPUSH', key('turns', id), turn)
redis.call('HSET', key('session', id), 'num_turns', num_turns + 1, 'used_at', now)
use(#turn)
return 1
"""
)

DELETE = (
    _COMMON
    + """
if not turns_if_known() then return 0 end
drop(id)
redis.call('SET', key('deleted', id), 1, 'PX', math.ceil(ttl * 1000))
return 1
"""
)

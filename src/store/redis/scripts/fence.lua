-- Mints the next fencing token if the lock is ours. KEYS: lock, counter. ARGV: token, counter's ttl in ms.
-- Answers the number as text, or nil. Numbers stay below 2^53, which Lua's doubles keep exact.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return false end
local time = redis.call('TIME')
local micros = tonumber(time[1]) * 1000000 + tonumber(time[2])
local last = tonumber(redis.call('GET', KEYS[2]) or 0)
local minted = string.format('%.0f', math.max(last + 1, micros))
redis.call('SET', KEYS[2], minted, 'PX', ARGV[2])
return minted

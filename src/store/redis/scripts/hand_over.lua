-- Passes the lock on if it is ours. KEYS: lock. ARGV: token, next token, ttl in ms.
-- Answers 1 (passed on), 0 (nobody's) or -1 (somebody else's). Sent twice, it answers 1 twice.
local holder = redis.call('GET', KEYS[1])
if not holder then return 0 end
if holder ~= ARGV[1] and holder ~= ARGV[2] then return -1 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1

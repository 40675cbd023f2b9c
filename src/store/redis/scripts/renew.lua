-- Extends the lock if it is ours. KEYS: lock. ARGV: token, ttl in ms.
-- Answers 1 (extended), 0 (nobody's) or -1 (somebody else's).
local holder = redis.call('GET', KEYS[1])
if not holder then return 0 end
if holder ~= ARGV[1] then return -1 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])

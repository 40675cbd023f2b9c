-- Takes the lock if it is free or already ours. KEYS: lock. ARGV: token, ttl in ms.
-- Answers {1} or {0, remaining ms (-1: the key has no expiry)}.
local holder = redis.call('GET', KEYS[1])
if not holder then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return {1}
end
if holder == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return {1}
end
return {0, redis.call('PTTL', KEYS[1])}

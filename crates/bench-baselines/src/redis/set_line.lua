-- A line of a cart, its version and its history, in one step. KEYS: the cart, its history. ARGV: product, quantity, now.
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
local version = redis.call('HINCRBY', KEYS[1], '_version', 1)
redis.call('EXPIRE', KEYS[1], 2592000)
redis.call('RPUSH', KEYS[2], ARGV[3] .. ' ' .. version .. ' ' .. ARGV[1] .. ' ' .. ARGV[2])
return version

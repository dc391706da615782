-- An order in one step: the key, units held, the order with its lines and first event, its lists, the ledger, the cart.
-- KEYS: the request's key, the cart ('' without one). ARGV: fingerprint, order, buyer, zone, now, pay by, then product and
-- quantity of each line where there is no cart.
if not redis.call('SET', KEYS[1], ARGV[1] .. ARGV[2], 'NX', 'EX', 172800) then
    return 'known'
end
local order, buyer, zone, now, pay_by = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local lines = {}
if KEYS[2] ~= '' then
    local cart = redis.call('HGETALL', KEYS[2])
    for at = 1, #cart, 2 do
        if cart[at] ~= '_version' then
            lines[#lines + 1] = cart[at]
            lines[#lines + 1] = cart[at + 1]
        end
    end
    if #lines == 0 then
        return redis.error_reply('the cart is empty: ' .. KEYS[2])
    end
else
    for at = 7, #ARGV do
        lines[#lines + 1] = ARGV[at]
    end
end
for at = 1, #lines, 2 do
    local stock = redis.call('HMGET', 'stock:' .. lines[at] .. ':' .. zone, 'on_hand', 'reserved')
    if tonumber(stock[1]) - tonumber(stock[2]) < tonumber(lines[at + 1]) then
        return redis.error_reply('out of stock: ' .. lines[at])
    end
end
local total, items = 0, {}
for at = 1, #lines, 2 do
    local product = redis.call('HMGET', 'product:' .. lines[at], 'name', 'price')
    total = total + tonumber(product[2]) * tonumber(lines[at + 1])
    items[#items + 1] = lines[at] .. '|' .. product[1] .. '|' .. product[2] .. '|' .. lines[at + 1]
    redis.call('HINCRBY', 'stock:' .. lines[at] .. ':' .. zone, 'reserved', lines[at + 1])
    redis.call('RPUSH', 'ledger:' .. lines[at] .. ':' .. zone, order .. ' held ' .. lines[at + 1] .. ' ' .. now)
end
redis.call('HSET', 'order:' .. order, 'user', buyer, 'zone', zone, 'status', 'created', 'total', total, 'version', 1,
    'lines', table.concat(items, ';'), 'created_at', now, 'updated_at', now, 'pay_by', pay_by)
redis.call('RPUSH', 'events:' .. order, now .. ' created')
redis.call('ZADD', 'orders:user:' .. buyer, now, order)
redis.call('ZADD', 'orders:zone:' .. zone, now, order)
redis.call('ZADD', 'orders:all', now, order)
redis.call('ZADD', 'orders:to_pay', pay_by, order)
if KEYS[2] ~= '' then
    redis.call('DEL', KEYS[2])
end
return order

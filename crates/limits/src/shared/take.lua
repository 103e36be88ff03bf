-- Takes one token from each of several buckets, or from none.
-- KEYS[..] the buckets: each value is the time when the bucket is full again, in µs. A bucket without a key is full.
-- ARGV[..] for each bucket: the cost of a token in µs, and the burst.
-- Reply: 1 if a token was taken from each bucket, else 0; and for each bucket the µs until it is full again.
-- Invariants: the debt of a bucket never exceeds its burst. Tokens are taken from all buckets or from none. A full bucket has no key.
-- Two tokens are taken from a bucket that is listed twice.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local found, before, after = {}, {}, {}
local function write(key)
  redis.call('SET', key, string.format('%.0f', found[key]), 'PX', math.ceil((found[key] - now) / 1000))
end

local allowed = true
for i, key in ipairs(KEYS) do
  local cost = tonumber(ARGV[2 * i - 1])
  local limit = cost * tonumber(ARGV[2 * i])
  found[key] = found[key] or tonumber(redis.call('GET', key) or now)
  -- Caps the debt: the clock may have been set back, or the rate may have been reduced.
  if found[key] > now + limit then
    found[key] = now + limit
    write(key)
  end
  before[i] = math.max(found[key] - now, 0)
  after[i] = before[i] + cost
  if after[i] <= limit then found[key] = now + after[i] else allowed = false end
end
if not allowed then return { 0, before } end
for _, key in ipairs(KEYS) do write(key) end
return { 1, after }

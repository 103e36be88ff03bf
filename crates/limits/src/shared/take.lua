-- Takes one from each of several buckets, or from none.
-- KEYS[..] the buckets: each holds the time when it is full again, in µs. A bucket without a key is full.
-- ARGV[..] for each bucket: the time that one costs in µs, and how many may be taken at once.
-- Reply: 1 when one was taken from each, else 0; and for each bucket the µs until it is full again.
-- Keeps: a bucket is never further from full than its burst allows. All buckets are taken from, or none. A full bucket has no
-- key. A bucket that is named twice is taken from twice.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local found, before, after = {}, {}, {}
local function write(key)
  redis.call('SET', key, string.format('%.0f', found[key]), 'PX', math.ceil((found[key] - now) / 1000))
end

local allowed = true
for i, key in ipairs(KEYS) do
  local cost = tonumber(ARGV[2 * i - 1])
  local most = cost * tonumber(ARGV[2 * i])
  found[key] = found[key] or tonumber(redis.call('GET', key) or now)
  -- No more than the most, from now on: the clock may have been set back, or the rate made smaller.
  if found[key] > now + most then
    found[key] = now + most
    write(key)
  end
  before[i] = math.max(found[key] - now, 0)
  after[i] = before[i] + cost
  if after[i] <= most then found[key] = now + after[i] else allowed = false end
end
if not allowed then return { 0, before } end
for _, key in ipairs(KEYS) do write(key) end
return { 1, after }

-- Makes pending tickets active again.
-- KEYS[1..4] as in preamble.lua.
-- ARGV[1] as in preamble.lua; ARGV[2] the claim that holds the tickets, or empty for any; ARGV[3..] ids.
-- Reply: how many tickets another claim holds, which stay pending.
-- Keeps: a release under an old claim does not touch the tickets of a newer one.
local claim, others, released = ARGV[2] ~= '' and tonumber(ARGV[2]), 0, {}
for from = 3, #ARGV, 1000 do
  local to = math.min(from + 999, #ARGV)
  local held = { unpack(ARGV, from, to) }
  if claim then
    local scores, ids = call('ZMSCORE', pending, unpack(held)), held
    held = {}
    for i = 1, #ids do
      if is_claim(scores[i], claim) then
        held[#held + 1] = ids[i]
      elseif scores[i] then
        others = others + 1
      end
    end
  end
  if #held > 0 then call('ZREM', pending, unpack(held)) end
  for i = 1, #held do released[#released + 1] = held[i] end
end
changed('r', released)
return others

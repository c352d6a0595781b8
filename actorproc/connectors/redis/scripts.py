"""The scripts that Redis runs. A script is atomic, but an error halfway undoes nothing: check first, position last."""

from __future__ import annotations

MOVED = b"moved"
"""Answer of a script: the sink's row is another one. Nothing was changed."""

FIELDS = ("home", "life", "term", "fence", "position", "put_id")
"""Of the hash that is the sink's row."""

_BEGIN = f"""
local names = {{{", ".join(f"'{name}'" for name in FIELDS)}}}
local was, now = cmsgpack.unpack(ARGV[1]), cmsgpack.unpack(ARGV[2])

local function is(key, kind)
  local found = redis.call('TYPE', key).ok
  return found == 'none' or found == kind
end

if not is(KEYS[1], 'hash') then return 'type ' .. KEYS[1] end
if #was == 0 then
  if redis.call('EXISTS', KEYS[1]) == 1 then return 'moved' end
else
  local found = redis.call('HMGET', KEYS[1], unpack(names))
  for i = 1, #names do
    if found[i] ~= was[i] then return 'moved' end
  end
end
"""

_END = """
for i = 1, #names do redis.call('HSET', KEYS[1], names[i], now[i]) end
return 'ok'
"""

APPEND = (
    _BEGIN
    + """
if not is(KEYS[2], 'stream') then return 'type ' .. KEYS[2] end
for i = 4, #ARGV do
  for _, row in ipairs(cmsgpack.unpack(ARGV[i])) do
    if ARGV[3] == '' then
      redis.call('XADD', KEYS[2], '*', unpack(row))
    else
      redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[3], '*', unpack(row))
    end
  end
end
"""
    + _END
)
"""Adds rows to a stream.

KEYS: the sink's row, the stream. ARGV: the sink's row as it was, and as it will be; entries that the stream keeps; all
rows.
"""

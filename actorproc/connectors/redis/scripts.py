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
  if redis.call('HEXISTS', KEYS[1], 'position') == 1 then return 'moved' end
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
redis.call('HSET', KEYS[1], 'probe', '')  -- a right that is missing must show before rows are added
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

UPSERT = (
    _BEGIN
    + """
local first = 4
for i = first, #KEYS do
  if not is(KEYS[i], 'hash') then return 'type ' .. KEYS[i] end
end
if not is(KEYS[2], 'hash') then return 'type ' .. KEYS[2] end
if not is(KEYS[3], 'hash') then return 'type ' .. KEYS[3] end

local life = redis.call('HGET', KEYS[2], ARGV[3])
if not life then
  life = string.format('%010d', redis.call('HLEN', KEYS[2]) + 1)
  redis.call('HSET', KEYS[2], ARGV[3], life)
end

local at = first
for i = 5, #ARGV do
  for _, row in ipairs(cmsgpack.unpack(ARGV[i])) do
    local key, number, deleted = KEYS[at], table.remove(row, 1), table.remove(row, 1)
    local version = life .. ARGV[4] .. number
    local found = redis.call('HGET', key, '_version') or redis.call('HGET', KEYS[3], key) or ''
    if version >= found then
      redis.call('DEL', key)
      if deleted == '1' then
        redis.call('HSET', KEYS[3], key, version)
      else
        redis.call('HSET', key, '_version', version, unpack(row))
        redis.call('HDEL', KEYS[3], key)
      end
    end
    at = at + 1
  end
end
"""
    + _END
)
"""Keeps the newest row of each key, as a hash.

KEYS: the sink's row; the lives of the target by registration; versions of deleted keys; the key of each row. ARGV: the
sink's row as it was, and as it will be; the registration; the depth; all rows, each with the number of its commit, and
whether it deletes.
"""

"""The scripts that Redis runs. A script is atomic, but an error halfway undoes nothing: check first, position last.

Redis logs the commands of a script as a transaction. A kill in the middle of that leaves a part in the log. The next
start undoes the part, but does not remove it from the log, so the start after that applies it, together with what came
afterwards (`aof-load-truncated yes`, the default). This repeats a delivery in part. Rows of keys do not mind, but
entries of a stream would be there twice. Therefore a delivery first writes a note with the ids of its entries, and
deletes the note of the delivery before it. A second note shows that a part has come back, and names its entries.

An id is never given twice, since a delivery that was undone may have had it: it is later than the clock's last one, or
has the clock's microseconds as its second part where ids of others are ahead of the clock. Ids are texts: others may
have ids that a number of Lua, a double, cannot hold.
"""

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
local row = {}
for i = 1, #names do
  row[2 * i - 1], row[2 * i] = names[i], now[i]
end
redis.call('HSET', KEYS[1], unpack(row))
return 'ok'
"""

_LATEST = """
local function is_ours(fields)
  for i = 1, #fields, 2 do
    if fields[i] == '_partition' then return fields[i + 1] == partition end
  end
end

local latest = redis.call('HGET', KEYS[1], 'entries') or ''
for _, note in ipairs(redis.call('HKEYS', KEYS[1])) do
  local first, last = string.match(note, '^(%d+%-%d+) (%d+%-%d+)$')
  if first and note ~= latest then
    for _, entry in ipairs(redis.call('XRANGE', KEYS[2], first, last)) do
      if is_ours(entry[2]) then redis.call('XDEL', KEYS[2], entry[1]) end
    end
    redis.call('HDEL', KEYS[1], note)
  end
end
"""
"""Takes out the entries of deliveries that Redis has undone at one restart, and brought back at another."""

READ = (
    "local partition = ARGV[1]"
    + _LATEST
    + f"""
return redis.call('HMGET', KEYS[1], {", ".join(f"'{name}'" for name in FIELDS)})
"""
)
"""The sink's row. KEYS: the sink's row, the stream. ARGV: the partition."""

APPEND = (
    _BEGIN
    + """
local partition = ARGV[4]
if not is(KEYS[2], 'stream') then return 'type ' .. KEYS[2] end
"""
    + _LATEST
    + """
local function trim()
  if ARGV[3] ~= '' then redis.call('XTRIM', KEYS[2], 'MAXLEN', '~', ARGV[3]) end
end

local function less(one, other)
  if #one ~= #other then return #one < #other end
  return one < other
end

local function plus_one(digits)
  local head, nines = string.match(digits, '^(.-)(9*)$')
  if head == '' then return '1' .. string.rep('0', #nines) end
  return string.sub(head, 1, -2) .. tonumber(string.sub(head, -1)) + 1 .. string.rep('0', #nines)
end

local function last_id()
  if redis.call('EXISTS', KEYS[2]) == 0 then return '0', '0' end
  local stream = redis.call('XINFO', 'STREAM', KEYS[2])
  for i = 1, #stream, 2 do
    if stream[i] == 'last-generated-id' then return string.match(stream[i + 1], '(%d+)-(%d+)') end
  end
end

local function next_id()
  local time = redis.call('TIME')
  local us = time[1] * 1000000 + time[2]
  local ms = string.format('%d', math.floor(us / 1000))
  local last_ms, last_number = last_id()
  if less(last_ms, ms) then return ms, 0 end
  if last_ms == ms and #last_number < 15 then return ms, last_number + 1 end
  return plus_one(last_ms), us
end

local rows = {}
for i = 5, #ARGV do
  for _, row in ipairs(cmsgpack.unpack(ARGV[i])) do rows[#rows + 1] = row end
end
local entries = latest
if #rows > 0 then
  local ms, number = next_id()
  if less('18446744073709551615', ms) then return redis.error_reply('ERR the stream has the last possible ID') end
  local function id(i) return ms .. string.format('-%d', number + i - 1) end
  entries = id(1) .. ' ' .. id(#rows)
  redis.call('HSET', KEYS[1], entries, '')
  redis.call('HDEL', KEYS[1], latest)
  trim()  -- a right that is missing must show before rows are added
  for i, row in ipairs(rows) do redis.call('XADD', KEYS[2], id(i), unpack(row)) end
  trim()  -- not by XADD: in the log that would be exact, and take entries out for those that come back
end
names[#names + 1], now[#now + 1] = 'entries', entries
"""
    + _END
)
"""Adds rows to a stream.

KEYS: the sink's row, the stream. ARGV: the sink's row as it was, and as it will be; entries that the stream keeps; the
partition; all rows.
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

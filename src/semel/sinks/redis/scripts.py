"""The Lua that Redis runs for a chunk: progress row first, then each event, each with an outcome.

Always true:
- nothing from a column is ever part of a script's text: keys travel as KEYS, values as ARGV;
- what can fail for want of memory, disk, replicas or rights fails at the first write, which is the
  row: Redis lets a script that has written go on. So a chunk is refused as a whole, or all of its
  events have an outcome. After the first write there are only further HSETs, which are allowed
  then too; DEL only tidies up, and may fail;
- what a user's Lua returns or raises by itself is about its event alone, whatever its words; only
  what Redis answers to a command can be about all events;
- the row keeps which events of the last chunk were refused.
"""

from __future__ import annotations

from hashlib import sha1

_ROW = """
local row, ids = KEYS[1], KEYS[2]
local found = redis.pcall('HGETALL', row)
if found.err then return {'foreign', found.err} end
local kept = redis.pcall('HLEN', ids)
if type(kept) == 'table' then return {'foreign', kept.err} end
local stood = {}
for at = 1, #found, 2 do stood[found[at]] = found[at + 1] end
local function beyond(first, second, mine, my_second)
  first, mine = tonumber(first), tonumber(mine)
  return first > mine or (first == mine and tonumber(second) > tonumber(my_second))
end
local same = false
if #found > 0 then
  if stood.version ~= '1' then return {'foreign', 'version ' .. tostring(stood.version)} end
  if beyond(stood.run, stood.task, ARGV[3], ARGV[4]) then
    return {'fenced', 'attempt ' .. stood.run .. '.' .. stood.task}
  end
  if beyond(stood.generation, stood.batch, ARGV[1], ARGV[2]) then
    return {'fenced', 'minibatch ' .. stood.generation .. '.' .. stood.batch}
  end
  same = stood.generation == ARGV[1] and stood.batch == ARGV[2]
end
"""

_TAKE_OVER = """
local listed = redis.call('HGETALL', ids)
local written
if same then
  written = redis.pcall('HSET', row, 'run', ARGV[3], 'task', ARGV[4])
else
  written = redis.pcall('HSET', row, 'version', '1', 'generation', ARGV[1], 'batch', ARGV[2],
    'run', ARGV[3], 'task', ARGV[4], 'done', '0', 'start', '0', 'osn', stood.osn or '0',
    'digest', '', 'sort_key', 'null', 'unfit', '', 'refused', '', 'events', '')
end
if type(written) == 'table' then return {'stopped', written.err} end
if not same then redis.pcall('DEL', ids) end
return {'done', found, listed}
"""

_MOVE = """
if same and tonumber(stood.done) > tonumber(ARGV[6]) then
  return {'fenced', 'event ' .. stood.done .. ' of the order'}
end
if tonumber(stood.osn or '0') < tonumber(ARGV[13]) then return {'lost', stood.osn or '0'} end
local written = redis.pcall('HSET', row, 'version', '1', 'generation', ARGV[1], 'batch', ARGV[2],
  'run', ARGV[3], 'task', ARGV[4], 'done', ARGV[5], 'start', ARGV[6], 'osn', ARGV[7],
  'digest', ARGV[8], 'sort_key', ARGV[9], 'unfit', ARGV[11], 'refused', '', 'events', '')
if type(written) == 'table' then return {'stopped', written.err} end

local STOPS = {OOM = 1, READONLY = 1, MISCONF = 1, NOREPLICAS = 1, MASTERDOWN = 1, LOADING = 1,
  CLUSTERDOWN = 1, TRYAGAIN = 1, MOVED = 1, ASK = 1, BUSY = 1, NOPERM = 1, NOAUTH = 1}
local function stops(why)
  return STOPS[string.match(why, '%f[%u](%u%u+)%f[^%u]') or '']
    or string.find(why, 'The user executing the script', 1, true)
end
local width, many, command = tonumber(ARGV[14]), tonumber(ARGV[15]), ARGV[16]
local count, refused, stop = (#KEYS - 2) / many, {}, nil
local wrote, met = false, false
"""

_EACH_COMMAND = """
for at = 1, count do
  local reply
  if width == 1 then
    reply = redis.pcall(command, KEYS[2 + at], ARGV[16 + at])
  elseif width == 2 then
    reply = redis.pcall(command, KEYS[2 + at], ARGV[15 + 2 * at], ARGV[16 + 2 * at])
  else
    reply = redis.pcall(command, KEYS[2 + at], unpack(ARGV, 17 + width * (at - 1), 16 + width * at))
  end
  if type(reply) == 'table' and reply.err then
    refused[#refused + 1] = {at - 1, string.sub(reply.err, 1, 500)}
    if stops(reply.err) then stop = at break end
  end
end
"""

_APPLY = """
local READS = {}
for name in string.gmatch('GET MGET GETRANGE STRLEN EXISTS TYPE TTL PTTL HGET HMGET HGETALL HEXISTS'
  .. ' HLEN HKEYS HVALS LLEN LINDEX LRANGE SCARD SISMEMBER SMEMBERS ZSCORE ZCARD ZCOUNT ZRANK'
  .. ' ZRANGE ZREVRANK XLEN XRANGE XREVRANGE TIME', '%S+') do READS[name] = true end
local guarded = setmetatable({}, {__index = redis})
local function note(name, fine, reply)
  local failed = type(reply) == 'table' and reply.err or not fine and reply
  if failed then met = met or stops(tostring(failed))
  elseif not READS[string.upper(name)] then wrote = true end
  return reply
end
guarded.call = function(...)
  local fine, reply = pcall(redis.call, ...)
  note((...), fine, reply)
  if not fine then error(reply, 0) end
  return reply
end
guarded.pcall = function(...) return note((...), true, redis.pcall(...)) end
local function apply(KEYS, ARGV, redis)
"""

_EACH_APPLY = """
end
for at = 1, count do
  local keys, values = {}, {}
  for each = 1, many do keys[each] = KEYS[2 + many * (at - 1) + each] end
  for each = 1, width do values[each] = ARGV[16 + width * (at - 1) + each] end
  wrote, met = false, false
  local fine, reply = pcall(apply, keys, values, guarded)
  local why = nil
  if type(reply) == 'table' and reply.err then why = tostring(reply.err)
  elseif not fine then why = tostring(reply) end
  if why then
    local partly = wrote and 'applied in part: ' or ''
    refused[#refused + 1] = {at - 1, partly .. string.sub(why, 1, 500)}
    if not wrote and met then stop = at break end
  end
end
"""

_END = """
if stop == 1 then
  if #found == 0 then found = {'done', '0', 'start', '0', 'osn', '0', 'digest', '',
    'sort_key', 'null', 'unfit', ''} end
  redis.call('HSET', row, unpack(found))
  return {'stopped', refused[1][2]}
end
if stop then
  local why = 'not tried, because an event before it met: ' .. refused[#refused][2]
  for at = stop + 1, count do refused[#refused + 1] = {at - 1, why} end
end
local told = ''
if #refused > 0 then
  told = cjson.encode(refused)
  redis.call('HSET', row, 'refused', told, 'events', ARGV[12])
end
if not same then redis.pcall('DEL', ids) end
if ARGV[10] ~= '' then
  redis.call('HSET', ids, ARGV[1] .. '.' .. ARGV[2] .. '.' .. ARGV[6], ARGV[10])
end
return {'done', told, tostring(stop or 0)}
"""


class Script:
    """A script's text, and the name under which Redis keeps it."""

    __slots__ = ("name", "text")

    def __init__(self, text: str) -> None:
        self.text = text.encode()
        self.name = sha1(self.text, usedforsecurity=False).hexdigest().encode()


TAKE_OVER = Script(_ROW + _TAKE_OVER)
COMMAND = Script(_ROW + _MOVE + _EACH_COMMAND + _END)


def applying(body: str) -> Script:
    """Give the script that runs a user's own Lua body for each event."""
    return Script(_ROW + _MOVE + _APPLY + body + _EACH_APPLY + _END)

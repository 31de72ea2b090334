"""The Lua that Redis runs for a chunk: progress row first, then each event, each with an outcome.

Always true:
- nothing from a column is ever part of a script's text: keys are passed as KEYS, values as ARGV;
- whatever can fail for lack of memory, disk, replicas or rights fails at the first write, which is
  the row: Redis lets a script that has written continue. So a chunk is refused as a whole, or all
  of its events have an outcome. After the first write there are only further HSETs, which are
  allowed then too; DEL only cleans up, and may fail;
- a user's Lua sees nothing of semel's: it is a function before every local, and it cannot assign to
  a global. What it returns or raises is read without its metatables;
- it stays in the row's database, and the format of replies is chosen for one event only;
- what a user's Lua returns or raises by itself is about its event only, whatever its text; only
  Redis' answer to a command can be about all events;
- whatever fails after the row has moved, every event gets an outcome; if no event was begun, the
  row is restored;
- the row keeps which events of the last chunk were rejected.
"""

from __future__ import annotations

from hashlib import sha1

_ROW = """
local type, pcall, error, tonumber, tostring = type, pcall, error, tonumber, tostring
local rawget, unpack, setmetatable = rawget, unpack, setmetatable
local sub, gsub, byte, format = string.sub, string.gsub, string.byte, string.format
local match, find, upper = string.match, string.find, string.upper
local call, try = redis.call, redis.pcall
local row, ids = KEYS[1], KEYS[2]
local found = try('HGETALL', row)
if found.err then return {'foreign', found.err} end
local kept = try('HLEN', ids)
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
local listed = call('HGETALL', ids)
local written
if same then
  written = try('HSET', row, 'run', ARGV[3], 'task', ARGV[4])
else
  written = try('HSET', row, 'version', '1', 'generation', ARGV[1], 'batch', ARGV[2],
    'run', ARGV[3], 'task', ARGV[4], 'done', '0', 'start', '0', 'osn', stood.osn or '0',
    'digest', '', 'sort_key', 'null', 'unfit', '', 'refused', '', 'events', '')
end
if type(written) == 'table' then return {'stopped', written.err} end
if not same then try('DEL', ids) end
return {'done', found, listed}
"""

_MOVE = """
if same and tonumber(stood.done) > tonumber(ARGV[6]) then
  return {'fenced', 'event ' .. stood.done .. ' of the order'}
end
if tonumber(stood.osn or '0') < tonumber(ARGV[13]) then return {'lost', stood.osn or '0'} end
local written = try('HSET', row, 'version', '1', 'generation', ARGV[1], 'batch', ARGV[2],
  'run', ARGV[3], 'task', ARGV[4], 'done', ARGV[5], 'start', ARGV[6], 'osn', ARGV[7],
  'digest', ARGV[8], 'sort_key', ARGV[9], 'unfit', ARGV[11], 'refused', '', 'events', '')
if type(written) == 'table' then return {'stopped', written.err} end

local STOPS = {OOM = 1, READONLY = 1, MISCONF = 1, NOREPLICAS = 1, MASTERDOWN = 1, LOADING = 1,
  CLUSTERDOWN = 1, TRYAGAIN = 1, MOVED = 1, ASK = 1, BUSY = 1, NOPERM = 1, NOAUTH = 1}
local function stops(why)
  return STOPS[match(why, '%f[%u](%u%u+)%f[^%u]') or '']
    or find(why, 'The user executing the script', 1, true)
end
local function readable(said)
  if type(said) == 'table' then said = rawget(said, 'err') or said end
  if type(said) == 'string' then return sub(said, 1, 500) end
  if type(said) == 'number' or type(said) == 'boolean' then return tostring(said) end
  return 'an error of type ' .. type(said)
end
local width, many, command = tonumber(ARGV[14]), tonumber(ARGV[15]), ARGV[16]
local count, refused, last = (#KEYS - 2) / many, {}, ''
local at, stop, wrote, met = 0, nil, false, false
local function refuse(place, why)
  last = why
  local escaped = gsub(why, '[%c"\\\\]', function(each)
    return format('\\\\u%04x', byte(each))
  end)
  refused[#refused + 1] = '[' .. format('%d', place - 1) .. ',"' .. escaped .. '"]'
end
"""

_EACH_COMMAND = """
local function run()
  for each = 1, count do
    at = each
    local reply
    if width == 1 then
      reply = try(command, KEYS[2 + each], ARGV[16 + each])
    elseif width == 2 then
      reply = try(command, KEYS[2 + each], ARGV[15 + 2 * each], ARGV[16 + 2 * each])
    else
      reply = try(command, KEYS[2 + each],
        unpack(ARGV, 17 + width * (each - 1), 16 + width * each))
    end
    if type(reply) == 'table' and reply.err then
      refuse(each, readable(reply))
      if stops(reply.err) then stop = each return end
    end
  end
end
"""

_BODY = "local semel_body = function(KEYS, ARGV, redis)\n"

_BODY_END = "\nend\n"

_EACH_APPLY = """
local READS = {}
for name in string.gmatch([[
  BITCOUNT BITFIELD_RO BITPOS DBSIZE DUMP EXISTS EXPIRETIME GEODIST GEOHASH GEOPOS
  GEORADIUSBYMEMBER_RO GEORADIUS_RO GEOSEARCH GET GETBIT GETRANGE HEXISTS HEXPIRETIME
  HGET HGETALL HKEYS HLEN HMGET HPEXPIRETIME HPTTL HRANDFIELD HSCAN HSTRLEN HTTL HVALS
  KEYS LCS LINDEX LLEN LOLWUT LPOS LRANGE MEMORY MGET OBJECT PEXPIRETIME PFCOUNT PTTL
  RANDOMKEY SCAN SCARD SDIFF SINTER SINTERCARD SISMEMBER SMEMBERS SMISMEMBER SORT_RO
  SRANDMEMBER SSCAN STRALGO STRLEN SUBSTR SUNION TIME TOUCH TTL TYPE XINFO XLEN XPENDING
  XRANGE XREAD XREVRANGE ZCARD ZCOUNT ZDIFF ZINTER ZINTERCARD ZLEXCOUNT ZMSCORE
  ZRANDMEMBER ZRANGE ZRANGEBYLEX ZRANGEBYSCORE ZRANK ZREVRANGE ZREVRANGEBYLEX
  ZREVRANGEBYSCORE ZREVRANK ZSCAN ZSCORE ZUNION
]], '%S+') do READS[name] = true end
local speaks, spoke = redis.setresp, false
local function note(name, fine, reply)
  local failed = type(reply) == 'table' and reply.err or not fine and reply
  if failed then met = met or stops(readable(failed))
  elseif not READS[upper(name)] then wrote = true end
  return reply
end
local function stay(name)
  name = type(name) == 'string' and upper(name)
  if name == 'SELECT' or name == 'SWAPDB' then
    error(name .. ' would part the effect from the progress row', 0)
  end
end
local given = setmetatable({
  call = function(...)
    stay((...))
    local fine, reply = pcall(call, ...)
    note((...), fine, reply)
    if not fine then error(reply, 0) end
    return reply
  end,
  pcall = function(...)
    stay((...))
    return note((...), true, try(...))
  end,
  setresp = function(version)
    speaks(version)
    spoke = true
  end,
  set_repl = function() error('set_repl would part the effect from the progress row', 0) end,
}, {__index = redis})
local function constant(_, name) error('write local ' .. readable(name), 0) end
local guarded = setmetatable({}, {__index = given, __newindex = constant, __metatable = false})
local fenced, setfenv = pcall(function() return setfenv end)
if fenced then
  setfenv(semel_body, setmetatable({}, {__index = _G, __newindex = constant}))
end
local function run()
  for each = 1, count do
    at = each
    local keys, values = {}, {}
    for place = 1, many do keys[place] = KEYS[2 + many * (each - 1) + place] end
    for place = 1, width do values[place] = ARGV[16 + width * (each - 1) + place] end
    wrote, met = false, false
    if spoke then speaks(2) spoke = false end
    local fine, reply = pcall(semel_body, keys, values, guarded)
    if not fine or type(reply) == 'table' and rawget(reply, 'err') then
      refuse(each, (wrote and 'applied in part: ' or '') .. readable(reply))
      if not wrote and met then stop = each return end
    end
  end
end
"""

_END = """
local fine, failed = pcall(run)
if stop == 1 or not fine and at == 0 then
  if #found == 0 then found = {'done', '0', 'start', '0', 'osn', '0', 'digest', '',
    'sort_key', 'null', 'unfit', ''} end
  call('HSET', row, unpack(found))
  return {'stopped', stop == 1 and last or readable(failed)}
end
local untried = stop and stop + 1
if not fine then
  refuse(at, 'applied in part, perhaps: ' .. readable(failed))
  stop, untried = at + 1, at + 1
end
if untried then
  local why = 'not tried, because an event before it met: ' .. last
  for place = untried, count do refuse(place, why) end
end
local told = ''
if #refused > 0 then
  told = '[' .. table.concat(refused, ',') .. ']'
  call('HSET', row, 'refused', told, 'events', ARGV[12])
end
if not same then try('DEL', ids) end
if ARGV[10] ~= '' then
  call('HSET', ids, ARGV[1] .. '.' .. ARGV[2] .. '.' .. ARGV[6], ARGV[10])
end
return {'done', told, tostring(stop or 0)}
"""


class Script:
    """A script's text, and the name under which Redis keeps it.

    Attributes:
        body: the user's part of it, which must be valid Lua by itself; empty if there is none.
    """

    __slots__ = ("body", "name", "text")

    def __init__(self, text: str, body: str = "") -> None:
        self.text = text.encode()
        self.body = body.encode()
        self.name = sha1(self.text, usedforsecurity=False).hexdigest().encode()


TAKE_OVER = Script(_ROW + _TAKE_OVER)
COMMAND = Script(_ROW + _MOVE + _EACH_COMMAND + _END)
CHECK = Script("""
local fine, load = pcall(function() return loadstring end)
if not fine then return '' end
local made, why = load(ARGV[1], '=user_script')
return made and '' or tostring(why)
""")
"""A script that checks a body: it returns what is wrong, or nothing if nothing is or it cannot find
out.
"""


def applying(body: str) -> Script:
    """Return the script that runs a user's Lua body for each event.

    The body comes first, so that it does not see semel's locals.
    """
    return Script(_BODY + body + _BODY_END + _ROW + _MOVE + _EACH_APPLY + _END, body)

"""Lua bodies of users' own: whatever one does, each event is applied once or reported, and
semel's row, ids and names are out of its reach.
"""

from __future__ import annotations

import re

import pytest

from semel.errors import ConfigurationError, DeliveryError, NotDelivered, Rejected
from semel.sinks.redis import Redis
from semel.sinks.redis.scripts import Script, applying
from semel.verify.servers.redis import RedisServer
from support.sinks.redis_pipeline import (
    ROW,
    chunk_of,
    listed,
    lists,
    progress_of,
    session,
    world_with,
)

PUSH = "redis.call('RPUSH', KEYS[1], ARGV[1])"
EVENTS = "a1 b2 a3 b4 c5"
ALL = "a:1,3 b:2,4 c:5"
NAMES = sorted(
    {
        name
        for found in re.finditer(
            r"local (?:function )?([\w, ]+)|function \w*\(([\w, ]+)\)|for ([\w, ]+) (?:=|in)",
            applying("local of_the_body = 1").text.decode(),
        )
        for name in re.findall(r"\w+", found[1] or found[2] or found[3] or "")
        if name not in {"of_the_body", "KEYS", "ARGV", "redis"}
    }
)

LUAS = {"error", "pcall", "rawget", "setfenv", "setmetatable", "tonumber", "tostring", "type",
        "unpack"}  # fmt: skip


def sink_of(server: RedisServer, body: str) -> Redis:
    return lists(server, command="", script=body, chunk_rows=10)


def delivered(server: RedisServer, body: str, events: str = EVENTS) -> dict[int, DeliveryError]:
    """Deliver one chunk; give the failures by place."""
    held = session(sink_of(server, body))
    held.take_over()
    chunk = chunk_of(events)
    try:
        return dict(held.deliver_with(chunk, progress_of(chunk)).failures)
    finally:
        held.close()


def test_the_names_are_those_that_semels_script_has() -> None:
    assert {"at", "count", "refused", "stop", "wrote", "row", "ids", "found"} <= set(NAMES)


def test_a_forgotten_local_of_any_name_of_semels_changes_nothing_of_semels(
    redis: RedisServer,
) -> None:
    for name in NAMES:
        redis.empty()
        failures = delivered(redis, f"{name} = 1 {PUSH}")
        assert {type(why) for why in failures.values()} == {Rejected}, name
        assert sorted(failures) == [0, 1, 2, 3, 4], name
        assert listed(redis) == "", name
        redis.empty()
        failures = delivered(redis, f"{PUSH} {name} = KEYS")
        assert sorted(failures) == [0, 1, 2, 3, 4], name
        assert all(str(why).startswith("applied in part: ") for why in failures.values()), name
        assert listed(redis) == ALL, name
        assert sorted(redis.execute("KEYS", "*")) == sorted(
            [b"l:a", b"l:b", b"l:c", ROW.encode(), f"{ROW}/ids".encode()]
        )


def test_a_body_cannot_read_semels_names(redis: RedisServer) -> None:
    for name in NAMES:
        if name in LUAS:
            continue
        redis.empty()
        failures = delivered(redis, f"redis.call('SET', 'stolen', tostring({name})) {PUSH}")
        assert sorted(failures) == [0, 1, 2, 3, 4], name
        assert redis.execute("EXISTS", "stolen") == 0, name


@pytest.mark.parametrize("name", ["type", "tostring", "string", "redis2", "pcall", "table", "next"])
def test_a_name_of_luas_own_is_not_overwritten_for_the_next_event_or_script(
    redis: RedisServer, name: str
) -> None:
    failures = delivered(redis, f"{name} = nil {PUSH}")
    assert sorted(failures) == [0, 1, 2, 3, 4]
    assert listed(redis) == ""
    redis.empty()
    assert delivered(redis, PUSH) == {}
    assert listed(redis) == ALL


@pytest.mark.parametrize(
    "end",
    [
        "return setmetatable({}, {__index = function() error('boom') end})",
        "return setmetatable({}, {__index = function() return {} end})",
        "return {err = {}}",
        "return {err = setmetatable({}, {__tostring = function() error('boom') end})}",
        "return {err = function() end}",
        "error(setmetatable({}, {__tostring = function() error('boom') end}))",
        "error(setmetatable({}, {__index = function() error('boom') end}))",
        "error({err = {}})",
        "error({err = 5})",
        "error({})",
        "error(nil)",
        "error(true)",
        "error(function() end)",
        "error(string.rep('x', 1000000))",
        "error('\\0\\1\"\\\\ ä \\255')",
        "local function deep() return deep() + 1 end deep()",
        "coroutine.yield(1)",
        "redis.call('EVAL', 'return 1', 0)",
        "redis.call('NOSUCH')",
        "redis.call()",
        "redis.call({})",
        "redis.call(nil, nil)",
        "redis.pcall().x.y = 1",
        "redis.call = nil redis.call('GET', KEYS[1])",
        "redis.set_repl(0)",
        "redis.call('SELECT', 1)",
        "redis.pcall('select', 1)",
        "redis.call('SWAPDB', 0, 1)",
    ],
)
def test_no_value_that_a_body_gives_loses_an_event_or_applies_one_twice(
    redis: RedisServer, end: str
) -> None:
    failures = delivered(redis, f"if ARGV[1] == '3' then {end} end {PUSH}")
    assert set(failures) <= {2}, failures
    assert listed(redis) == "a:1 b:2,4 c:5"
    redis.empty()
    failures = delivered(redis, f"{PUSH} if ARGV[1] == '3' then {end} end")
    assert set(failures) <= {2}, failures
    assert listed(redis) == ALL
    for why in failures.values():
        assert isinstance(why, Rejected)
        assert str(why).startswith("applied in part: ")
        assert len(str(why)) < 700


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("return {err = {}}", "table"),
        ("error({})", "table"),
        ("error(nil)", "nil"),
        ("error('at \\0\\1\"\\\\')", 'at \0\1"\\'),
        ("return redis.error_reply('POOR \"x\"')", 'POOR "x"'),
    ],
)
def test_what_a_body_said_is_told_as_well_as_it_can_be(
    redis: RedisServer, end: str, said: str
) -> None:
    assert said in str(delivered(redis, end)[0])


def test_a_body_that_returns_something_else_than_an_error_has_applied_its_event(
    redis: RedisServer,
) -> None:
    ends = ["return nil", "return false", "return 7", "return {}", "return redis.status_reply('X')",
            "return string.rep('x', 1000000)", "return function() end",
            "local t = {} t.t = t return t"]  # fmt: skip
    for end in ends:
        redis.empty()
        assert delivered(redis, f"{PUSH} {end}") == {}, end
        assert listed(redis) == ALL, end


@pytest.mark.parametrize(
    "body",
    [
        f"end {PUSH} do",
        f"return end local x = 1 {PUSH} local f = function()",
        f"{PUSH} end for i = 1, 3 do",
        f"{PUSH} --[[ and no end",
        f"{PUSH} local text = [[",
        "this is not valid Lua",
    ],
)
def test_a_body_that_leaves_its_place_is_refused_before_anything_runs(
    redis: RedisServer, body: str
) -> None:
    with pytest.raises(ConfigurationError, match="is not valid Lua"):
        delivered(redis, body)
    assert listed(redis) == ""
    assert redis.execute("EXISTS", "l:") == 0
    assert redis.execute("HGET", ROW, "done") == b"0"


def test_a_body_may_end_in_a_comment_and_have_functions_of_its_own(redis: RedisServer) -> None:
    body = f"local function push() {PUSH} end\n\npush() -- that is all"
    assert delivered(redis, body) == {}
    assert listed(redis) == ALL


def test_settings_of_the_json_library_do_not_lose_a_refused_event(redis: RedisServer) -> None:
    changed = "pcall(cjson.encode_max_depth, 1) pcall(cjson.encode_number_precision, 1) "
    body = f"{changed} if ARGV[1] == '3' then return redis.error_reply('NO') end {PUSH}"
    try:
        failures = delivered(redis, body)
        assert list(failures) == [2]
        assert listed(redis) == "a:1 b:2,4 c:5"
    finally:
        redis.execute("EVAL", "cjson.encode_max_depth(1000) cjson.encode_number_precision(14)", 0)


def test_a_body_that_fails_within_a_pipeline_is_parked_once_and_the_others_arrive(
    redis: RedisServer,
) -> None:
    odd = "error(setmetatable({}, {__tostring = error}))"
    body = f"if ARGV[1] == '3' then {PUSH} {odd} end {PUSH}"
    world = world_with(sink_of(redis, body))
    world.minibatch(0, "a1 b2 a3 b4 c5")
    assert listed(redis) == ALL
    assert world.parked() == ["a3 rejected"]
    world.minibatch(1, "a6")
    assert listed(redis) == "a:1,3,6 b:2,4 c:5"


# -- faults of semel's own script, planted into its text


def planted(server: RedisServer, after: str, fault: str) -> Redis:
    """A sink whose script has a fault at a place that no body reaches."""
    sink = sink_of(server, PUSH)
    text = sink.lua.text.decode()
    assert text.count(after) == 1
    sink.__dict__["lua"] = Script(text.replace(after, f"{after} {fault} "))
    return sink


def test_a_server_without_setfenv_refuses_a_forgotten_local_too(redis: RedisServer) -> None:
    for name in ("count", "refused", "of_the_body", "type"):
        redis.empty()
        sink = sink_of(redis, f"{name} = 1 {PUSH}")
        text = sink.lua.text.decode()
        assert text.count("return setfenv end") == 1
        sink.__dict__["lua"] = Script(text.replace("return setfenv end", "return not_there end"))
        held = session(sink)
        held.take_over()
        chunk = chunk_of(EVENTS)
        assert sorted(held.deliver_with(chunk, progress_of(chunk)).failures) == [0, 1, 2, 3, 4]
        assert listed(redis) == ""


def test_a_fault_between_two_events_gives_every_event_an_outcome(redis: RedisServer) -> None:
    held = session(
        planted(redis, "wrote, met = false, false\n    ", "if at == 3 then error({}) end")
    )
    held.take_over()
    chunk = chunk_of(EVENTS)
    failures = held.deliver_with(chunk, progress_of(chunk)).failures
    assert {at: type(why) for at, why in failures.items()} == {
        2: Rejected,
        3: NotDelivered,
        4: NotDelivered,
    }
    assert str(failures[2]).startswith("applied in part, perhaps: ")
    assert listed(redis) == "a:1 b:2"
    told = session(sink_of(redis, PUSH), task=2).take_over()
    assert told is not None
    assert (told.done, sorted(told.rejected)) == (5, [2, 3, 4])


def test_a_fault_before_the_first_event_puts_the_row_back(redis: RedisServer) -> None:
    held = session(sink_of(redis, PUSH))
    held.take_over()
    first = chunk_of("a1 b2")
    held.deliver_with(first, progress_of(first))
    before = redis.execute("HGETALL", ROW)
    broken = session(planted(redis, "local function run()\n", "error('no')"))
    chunk = chunk_of("a3 b4", 2)
    with pytest.raises(NotDelivered, match="no"):
        broken.deliver_with(chunk, progress_of(chunk))
    assert redis.execute("HGETALL", ROW) == before
    held.deliver_with(chunk, progress_of(chunk))
    assert listed(redis) == "a:1,3 b:2,4"


def test_a_body_that_selects_another_database_takes_no_later_event_and_no_refusal_there(
    redis: RedisServer,
) -> None:
    select = "if ARGV[1] == '2' then redis.call('SELECT', 1) end"
    refuse = "if ARGV[1] == '4' then return redis.error_reply('POOR') end"
    failures = delivered(redis, f"{select} {refuse} {PUSH}")
    assert sorted(failures) == [1, 3]
    assert "SELECT" in str(failures[1])
    assert listed(redis) == "a:1,3 c:5"
    assert b"POOR" in redis.execute("HGET", ROW, "refused"), "what a successor reads"


def test_the_replies_that_a_body_chose_are_those_of_its_event_alone(redis: RedisServer) -> None:
    chosen = "if ARGV[1] == '1' then redis.setresp(3) end redis.call('HSET', 'h', 'k', 'v')"
    failures = delivered(redis, f"{chosen} {PUSH} return #redis.call('HGETALL', 'h') == 2 and 1"
                         " or redis.error_reply('a map')")  # fmt: skip
    assert sorted(failures) == [0]
    assert listed(redis) == ALL


def test_every_command_that_only_reads_is_known_as_one(redis: RedisServer) -> None:
    reading = {
        name.upper()
        for name, told in redis.execute("COMMAND").items()
        if "readonly" in told["flags"] and "noscript" not in told["flags"]
    }
    assert {"GET", "ZRANGEBYSCORE", "SMISMEMBER"} <= reading
    known = applying("return 1").text.decode().split("gmatch([[")[1].split("]]")[0].split()
    assert reading - {"HOST:", "POST"} <= {*known}


def test_what_all_events_meet_after_a_look_is_not_taken_for_a_fault_of_each(
    redis: RedisServer,
) -> None:
    rights = ("~*", "+@all", "-rpush")
    redis.execute("ACL", "SETUSER", "clerk", "reset", "on", f">{redis.password}", *rights)
    look = "redis.call('ZRANGEBYSCORE', 'z', 0, 1)"
    try:
        sink = lists(redis, url=redis.url(user="clerk"), command="", script=f"{look} {PUSH}")
        held = session(sink)
        held.take_over()
        chunk = chunk_of(EVENTS)
        with pytest.raises(ConfigurationError, match="does not allow it"):
            held.deliver_with(chunk, progress_of(chunk))
    finally:
        redis.execute("ACL", "DELUSER", "clerk")
    assert redis.execute("HGET", ROW, "done") == b"0"

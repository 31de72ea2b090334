"""Redis as a destination: what is written there, and the contract of its sessions."""

from __future__ import annotations

import pickle
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from semel.errors import ConfigurationError, Diverged, Fenced, Rejected
from semel.events import Identity
from semel.protocol import Capability, OnReject
from semel.sinks import DELIVERED, Sink, TransactionalSession
from semel.sinks.redis import Redis
from semel.sinks.redis.scripts import COMMAND, applying
from semel.sinks.redis.sink import ARGUMENTS
from semel.verify.servers.redis import RedisServer
from support.pipeline import COUNTER, GIVEN, INCREASING, POSITION
from support.sinks.redis_pipeline import (
    ROW,
    chunk_of,
    listed,
    lists,
    progress_of,
    session,
    world_with,
)


def delivered(server: RedisServer, batch: pa.RecordBatch, **settings: Any) -> dict[int, str]:
    """Deliver rows in one chunk; give the failures."""
    opened = session(lists(server, **settings))
    chunk = chunk_of(batch)
    receipt = opened.deliver_with(chunk, progress_of(chunk))
    opened.close()
    assert all(isinstance(why, Rejected) for why in receipt.failures.values())
    return {at: str(why) for at, why in receipt.failures.items()}


def rows(**columns: Any) -> pa.RecordBatch:
    """Rows of one entity each, with these columns beside."""
    count = len(next(iter(columns.values())))
    own = {"c": [f"e{at}" for at in range(count)], "id": list(range(1, count + 1))}
    return pa.RecordBatch.from_pydict({**own, **columns})


# -- what is written


@pytest.mark.rows("S17")
@pytest.mark.parametrize(
    ("command", "arguments", "reading", "found"),
    [
        ("INCRBY", ("{v}",), ("GET", "k"), b"7"),
        ("DECRBY", ("{v}",), ("GET", "k"), b"-7"),
        ("HINCRBY", ("{f}", "{v}"), ("HGET", "k", "x"), b"5"),
        ("HINCRBYFLOAT", ("{f}", "{v}"), ("HGET", "k", "x"), b"5"),
        ("HSET", ("{f}", "{v}"), ("HGET", "k", "x"), b"4"),
        ("SET", ("{f}={v}", "EX", "1000"), ("GET", "k"), b"x=4"),
        ("APPEND", ("{v}",), ("GET", "k"), b"124"),
        ("LPUSH", ("{v}",), ("LRANGE", "k", 0, -1), [b"4", b"2", b"1"]),
        ("RPUSH", ("{v}", "-"), ("LRANGE", "k", 0, -1), [b"1", b"-", b"2", b"-", b"4", b"-"]),
        ("SADD", ("{f}",), ("SCARD", "k"), 2),
        ("ZADD", ("{v}", "{f}"), ("ZSCORE", "k", "x"), 4.0),
        ("ZINCRBY", ("{v}", "{f}"), ("ZSCORE", "k", "x"), 5.0),
        ("XADD", ("*", "v", "{v}"), ("XLEN", "k"), 3),
        ("DEL", (), ("EXISTS", "k"), 0),
    ],
)
def test_every_command_is_run_for_every_event(
    redis: RedisServer, command: str, arguments: tuple[str, ...], reading: Any, found: Any
) -> None:
    batch = rows(v=[1, 2, 4], f=["x", "y", "x"])
    assert delivered(redis, batch, command=command, key="k", arguments=arguments) == {}
    assert redis.execute(*reading) == found


def test_the_table_above_names_every_command() -> None:
    [mark] = [
        each
        for each in test_every_command_is_run_for_every_event.pytestmark
        if each.name == "parametrize"
    ]
    assert {case[0] for case in mark.args[1]} == set(ARGUMENTS)


@pytest.mark.rows("S17")
def test_a_script_of_ones_own_moves_money_between_two_keys_or_refuses(redis: RedisServer) -> None:
    transfer = """
        local has = tonumber(redis.call('GET', KEYS[1]) or '0')
        if has < tonumber(ARGV[1]) then return redis.error_reply('POOR only ' .. has) end
        redis.call('DECRBY', KEYS[1], ARGV[1])
        redis.call('INCRBY', KEYS[2], ARGV[1])
    """
    redis.execute("SET", "acc:x", 10)
    batch = rows(f=["x", "x", "x"], t=["y", "y", "z"], v=[6, 6, 4])
    failures = delivered(
        redis,
        batch,
        command="",
        script=transfer,
        key=("acc:{f}", "acc:{t}"),
        arguments=("{v}",),
    )
    assert failures == {1: "POOR only 4"}
    assert redis.execute("MGET", "acc:x", "acc:y", "acc:z") == [b"0", b"6", b"4"]


def test_a_script_that_fails_after_it_wrote_is_told_as_applied_in_part(redis: RedisServer) -> None:
    body = "redis.call('INCRBY', KEYS[1], 1) redis.call('LPUSH', KEYS[1], 1)"
    failures = delivered(redis, rows(v=[1]), command="", script=body, key="k:{c}", arguments=())
    assert failures[0].startswith("applied in part: ")
    assert "WRONGTYPE" in failures[0]
    checked = "if redis.call('GET', KEYS[1]) then error('there') end redis.call('SET', KEYS[1], 1)"
    redis.execute("SET", "k:e0", 1)
    redis.execute("DEL", ROW)
    failures = delivered(redis, rows(v=[1]), command="", script=checked, key="k:{c}", arguments=())
    assert "part" not in failures[0]
    redis.execute("DEL", ROW)
    passed_on = "local said = redis.pcall('LPUSH', KEYS[1], 1) if said.err then return said end"
    failures = delivered(
        redis, rows(v=[1]), command="", script=passed_on, key="k:{c}", arguments=()
    )
    assert failures[0].startswith("WRONGTYPE")


def test_values_of_every_kind_arrive_as_redis_writes_them(redis: RedisServer) -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "c": ["e"],
            "id": [1],
            "text": ["näïve \u2603 \U0001f600"],
            "bytes": pa.array([b"\x00\r\n\xff$3\r\nfoo"], pa.binary()),
            "fixed": pa.array([b"ab"], pa.binary(2)),
            "large": pa.array([2**63 - 1], pa.int64()),
            "small": pa.array([-5], pa.int8()),
            "float": [0.1],
            "decimal": pa.array([Decimal("-1.50")]),
            "yes": [True],
            "empty": [""],
        }
    )
    names = [name for name in batch.schema.names if name not in ("c", "id")]
    arguments = tuple(f"{{{name}}}" for name in names)
    assert delivered(redis, batch, command="RPUSH", key="l", arguments=arguments) == {}
    assert redis.execute("LRANGE", "l", 0, -1) == [
        "näïve \u2603 \U0001f600".encode(),
        b"\x00\r\n\xff$3\r\nfoo",
        b"ab",
        b"9223372036854775807",
        b"-5",
        b"0.1",
        b"-1.50",
        b"true",
        b"",
    ]


def test_nothing_in_a_value_becomes_a_command_or_lua_or_another_argument(
    redis: RedisServer,
) -> None:
    nasty = [
        "x\r\n*1\r\n$8\r\nFLUSHALL\r\n",
        "'); redis.call('FLUSHALL') --",
        "]] redis.call('FLUSHALL') --",
        "$0",
        "\x00",
        "{c}",
        "%s",
    ]
    redis.execute("SET", "canary", "sings")
    assert delivered(redis, rows(v=nasty), key="k:{v}", command="SET", arguments=("{v}",)) == {}
    assert redis.execute("GET", "canary") == b"sings"
    for each in nasty:
        assert redis.execute("GET", f"k:{each}") == each.encode()


def test_no_event_can_write_over_a_progress_row(redis: RedisServer) -> None:
    batch = rows(k=["semel:pay/out/0", "mine", "semel:other/out/0/ids"])
    failures = delivered(redis, batch, key="{k}", command="SET", arguments=("x",))
    assert sorted(failures) == [0, 2]
    assert "begins with 'semel:'" in failures[0]
    assert redis.execute("HGET", ROW, "done") == b"3"
    with pytest.raises(ConfigurationError, match="reserved for semel"):
        lists(redis, key="semel:{c}")


def test_a_null_is_refused_with_the_column_and_its_neighbours_arrive(redis: RedisServer) -> None:
    batch = rows(v=[1, None, 3], k=["x", "x", None])
    failures = delivered(redis, batch, key="n:{k}", command="INCRBY", arguments=("{v}",))
    assert failures == {
        1: "column 'v' is null, and Redis has no null",
        2: "column 'k' is null, and Redis has no null",
    }
    assert redis.execute("GET", "n:x") == b"1"
    redis.empty()
    world = world_with(lists(redis, chunk_rows=1, arguments=("{v}",)))
    schema = pa.schema([("c", "string"), ("id", "int64"), ("v", "string")])
    rows_of_one = [{"c": "a", "id": 1, "v": None}, {"c": "a", "id": 2, "v": "x"}]
    batch = pa.RecordBatch.from_pylist(rows_of_one, schema=schema)
    world.driver.end(opening := world.open(0), world.task(opening, [batch]))
    assert (listed(redis), world.parked()) == ("a:x", ["a1 rejected"])


def test_a_column_that_is_no_single_value_or_is_not_there_stops_the_pipeline(
    redis: RedisServer,
) -> None:
    batch = rows(v=[[1, 2]], w=[{"start": 5}])
    with pytest.raises(ConfigurationError, match=r"'v' is list.*to_json"):
        delivered(redis, batch, arguments=("{v}",))
    with pytest.raises(ConfigurationError, match="no column 'nothing'"):
        delivered(redis, batch, arguments=("{nothing}",))
    assert delivered(redis, batch, arguments=("{w.start}",)) == {}
    assert redis.execute("LRANGE", "l:e0", 0, -1) == [b"5"]


# -- single events that Redis refuses


def test_a_refused_event_is_named_with_the_reason_and_all_others_are_applied(
    redis: RedisServer,
) -> None:
    redis.execute("LPUSH", "n:list", 1)
    redis.execute("SET", "n:word", "hello")
    redis.execute("SET", "n:full", 2**63 - 1)
    batch = rows(k=["list", "ok", "word", "full", "ok"], v=["1", "2", "3", "4", "no number"])
    failures = delivered(redis, batch, key="n:{k}", command="INCRBY", arguments=("{v}",))
    assert failures == {
        0: "WRONGTYPE Operation against a key holding the wrong kind of value",
        2: "ERR value is not an integer or out of range",
        3: "ERR increment or decrement would overflow",
        4: "ERR value is not an integer or out of range",
    }
    assert redis.execute("GET", "n:ok") == b"2"


def test_the_row_keeps_who_was_refused_until_the_next_chunk(redis: RedisServer) -> None:
    sink = lists(redis, arguments=("{v}",), command="INCRBY")
    redis.execute("LPUSH", "l:b", 1)
    batch = pa.RecordBatch.from_pydict(
        {"c": ["a", "b", "c"], "id": ["i-1", "i-2", "ü\u2603"], "v": [1, 1, None]}
    )
    chunk = chunk_of(batch, start=4)
    first = session(sink)
    first.deliver_with(chunk, progress_of(chunk))
    stood = session(sink, task=2).take_over()
    assert stood is not None
    assert {at: why.split(" ")[0] for at, why in stood.rejected.items()} == {
        5: "WRONGTYPE",
        6: "column",
    }
    assert stood.rejected_events == {5: ("b", "i-2"), 6: ("c", "ü\u2603")}
    chunk = chunk_of("d9", start=7)
    session(sink, task=2).deliver_with(chunk, progress_of(chunk, task=2))
    stood = session(sink, task=2).take_over()
    assert stood is not None
    assert (stood.rejected, stood.rejected_events) == ({}, {})


@pytest.mark.parametrize("identity", [GIVEN, INCREASING, POSITION, COUNTER])
def test_refused_events_are_parked_and_the_entity_goes_on(
    redis: RedisServer, identity: Identity
) -> None:
    world = world_with(lists(redis, chunk_rows=4), identity)
    redis.execute("SET", "l:b", "no list")
    world.minibatch(0, "a1 b2 a3 b4 a5")
    assert listed(redis, "a") == "a:1,3,5"
    assert world.parked() == ["b2 rejected", "b4 rejected"]
    assert "WRONGTYPE" in world.parked_rows()[0][1].why


def test_with_block_the_followers_of_a_refused_event_wait_and_go_when_it_is_resolved(
    redis: RedisServer,
) -> None:
    world = world_with(lists(redis, chunk_rows=100, on_reject=OnReject.BLOCK))
    redis.execute("SET", "l:b", "no list")
    world.minibatch(0, "a1 b2 a3 b4 a5 b6")
    assert listed(redis, "a") == "a:1,3,5"
    assert world.parked() == ["b2 rejected", "b4 waiting", "b6 waiting"]
    redis.execute("DEL", "l:b")
    world.resolve("b2", "resend")
    world.minibatch(1, "b7")
    assert listed(redis, "ab") == "a:1,3,5 b:2,4,6,7"


def test_a_resend_that_is_refused_again_stays_a_dead_letter(redis: RedisServer) -> None:
    world = world_with(lists(redis))
    redis.execute("SET", "l:b", "no list")
    world.minibatch(0, "a1 b2")
    world.resolve("b2", "resend")
    world.minibatch(1, "a3")
    assert world.parked() == ["b2 rejected"]
    redis.execute("DEL", "l:b")
    world.resolve("b2", "resend")
    world.minibatch(2, "a4")
    assert listed(redis, "ab") == "a:1,3,4 b:2"


def test_a_chunk_that_is_too_large_is_split_before_it_is_sent_and_a_giant_is_parked(
    redis: RedisServer,
) -> None:
    world = world_with(lists(redis, arguments=("{big}",), chunk_rows=10, chunk_bytes=5_000))
    sizes = [10, 3_000, 3_000, 6_000, 3_000, 20]
    batch = pa.RecordBatch.from_pydict(
        {"c": ["a"] * 6, "id": list(range(6)), "big": ["x" * size for size in sizes]}
    )
    world.driver.end(opening := world.open(0), world.task(opening, [batch]))
    found = redis.execute("LRANGE", "l:a", 0, -1)
    assert [len(each) for each in found] == [10, 3_000, 3_000, 3_000, 20]
    assert world.parked() == ["a3 rejected"]
    assert "chunk_bytes" in world.parked_rows()[0][1].why


# -- the contract


def test_the_sink_is_a_description_that_travels_without_showing_its_password(
    redis: RedisServer,
) -> None:
    sink = lists(redis, script="return 1", command="", arguments=())
    assert isinstance(sink, Sink)
    assert sink.capability is Capability.TRANSACTIONAL
    assert isinstance(session(sink), TransactionalSession)
    again = pickle.loads(pickle.dumps(sink))
    assert again == sink
    assert again.lua.name == sink.lua.name == applying("return 1").name
    for said in (repr(sink), str(sink.describe()), sink.durability()):
        assert RedisServer.password not in said
        assert "p%2Fw" not in said


@pytest.mark.rows("S11")
def test_taking_over_writes_the_attempt_and_tells_what_stood_there(redis: RedisServer) -> None:
    sink = lists(redis)
    assert session(sink, task=1).take_over() is None
    chunk = chunk_of("a1 b2")
    assert session(sink, task=1).deliver_with(chunk, progress_of(chunk)) is DELIVERED
    stood = session(sink, task=2).take_over()
    assert stood == progress_of(chunk)
    taken = session(sink, task=3).take_over()
    assert taken is not None
    assert taken == progress_of(chunk, task=2)
    assert redis.execute("HMGET", ROW, "run", "task", "done") == [b"1", b"3", b"2"]


def test_taking_over_for_another_minibatch_begins_anew_and_keeps_the_number(
    redis: RedisServer,
) -> None:
    sink = lists(redis)
    chunk = chunk_of("a1 b2")
    session(sink).deliver_with(chunk, progress_of(chunk))
    assert session(sink, task=5, batch=1).take_over() == progress_of(chunk)
    stood = session(sink, task=6, batch=1).take_over()
    assert stood is not None
    assert (stood.done, stood.osn, stood.digest, bool(stood.ids)) == (0, 2, "", False)
    assert redis.execute("EXISTS", ROW + "/ids") == 0


@pytest.mark.rows("S11", "S17")
@pytest.mark.parametrize(
    ("later", "who"),
    [
        ({"task": 2}, "attempt 1.2"),
        ({"run": 2}, "attempt 2.1"),
        ({"batch": 1}, "minibatch 1.1"),
    ],
)
def test_an_earlier_attempt_or_minibatch_is_fenced_and_changes_nothing(
    redis: RedisServer, later: dict[str, int], who: str
) -> None:
    sink = lists(redis)
    zombie = session(sink)
    session(sink, **later).take_over()
    before = redis.execute("HGETALL", ROW)
    chunk = chunk_of("a1")
    with pytest.raises(Fenced, match=who):
        zombie.deliver_with(chunk, progress_of(chunk))
    with pytest.raises(Fenced, match=who):
        zombie.take_over()
    assert listed(redis) == ""
    assert redis.execute("HGETALL", ROW) == before


def test_a_call_of_ones_own_that_arrived_after_all_is_not_repeated(redis: RedisServer) -> None:
    sink = lists(redis)
    chunk = chunk_of("a1 b2")
    session(sink).deliver_with(chunk, progress_of(chunk))
    with pytest.raises(Fenced, match="event 2 of the order"):
        session(sink).deliver_with(chunk, progress_of(chunk))
    later = chunk_of("a3", start=2)
    session(sink).deliver_with(later, progress_of(later))
    assert listed(redis) == "a:1,3 b:2"


def test_numbers_are_compared_as_numbers(redis: RedisServer) -> None:
    sink = lists(redis)
    session(sink, task=9).take_over()
    session(sink, task=10).take_over()
    with pytest.raises(Fenced):
        session(sink, task=9).take_over()
    session(sink, task=10, batch=10).take_over()
    with pytest.raises(Fenced):
        session(sink, task=10, batch=9).take_over()
    session(sink, run=9, batch=10).take_over()
    session(sink, run=10, batch=10).take_over()
    with pytest.raises(Fenced):
        session(sink, run=9, batch=10).take_over()


def test_ids_of_a_minibatch_are_gathered_chunk_by_chunk_and_dropped_with_it(
    redis: RedisServer,
) -> None:
    sink = lists(redis)
    opened = session(sink)
    for start, names in ((0, "a1 b2"), (2, "a3"), (3, "c9")):
        chunk = chunk_of(names, start=start)
        opened.deliver_with(chunk, progress_of(chunk))
    stood = session(sink, task=2).take_over()
    assert stood is not None
    assert stood.ids.to_json() == chunk_of("a1 b2 a3 c9").rows.id_sets().to_json()
    assert redis.execute("HLEN", ROW + "/ids") == 3
    chunk = chunk_of("d1")
    session(sink, task=3, batch=1).deliver_with(chunk, progress_of(chunk, task=3, batch=1))
    stood = session(sink, task=4, batch=1).take_over()
    assert stood is not None
    assert stood.ids.to_json() == chunk.rows.id_sets().to_json()


def test_ids_that_could_not_be_dropped_do_not_count_for_the_next_minibatch(
    redis: RedisServer,
) -> None:
    rights = ("~*", "+@all", "-del")
    redis.execute("ACL", "SETUSER", "clerk", "reset", "on", f">{redis.password}", *rights)
    try:
        sink = lists(redis, url=redis.url(user="clerk"))
        for batch, names in ((0, "a1 b2"), (1, "d1")):
            chunk = chunk_of(names)
            session(sink, batch=batch).deliver_with(chunk, progress_of(chunk, batch=batch))
        stood = session(sink, task=2, batch=1).take_over()
        assert stood is not None
        assert stood.ids.to_json() == chunk_of("d1").rows.id_sets().to_json()
        assert redis.execute("HLEN", ROW + "/ids") == 2
    finally:
        redis.execute("ACL", "DELUSER", "clerk")


def test_a_row_that_redis_lost_under_a_session_stops_it(redis: RedisServer) -> None:
    opened = session(lists(redis))
    chunk = chunk_of("a1")
    opened.deliver_with(chunk, progress_of(chunk))
    redis.execute("FLUSHALL")
    later = chunk_of("a2", start=1)
    with pytest.raises(
        Diverged, match=r"1 is the last output .* that the destination acknowledged"
    ):
        opened.deliver_with(later, replace(progress_of(later), after=1))
    assert listed(redis) == ""


def test_what_is_not_a_progress_row_is_left_alone(redis: RedisServer) -> None:
    redis.execute("SET", ROW, "somebody's")
    with pytest.raises(ConfigurationError, match="used by something else"):
        session(lists(redis)).take_over()
    chunk = chunk_of("a1")
    with pytest.raises(ConfigurationError, match="used by something else"):
        session(lists(redis)).deliver_with(chunk, progress_of(chunk))
    redis.execute("DEL", ROW)
    redis.execute("SET", ROW + "/ids", "somebody's")
    with pytest.raises(ConfigurationError, match="used by something else"):
        session(lists(redis)).deliver_with(chunk, progress_of(chunk))
    redis.execute("DEL", ROW + "/ids")
    redis.execute("HSET", ROW, "version", "2")
    with pytest.raises(ConfigurationError, match="version 2"):
        session(lists(redis)).take_over()
    assert listed(redis) == ""


def test_a_script_that_redis_forgot_is_sent_again(redis: RedisServer) -> None:
    opened = session(lists(redis))
    for at in range(3):
        chunk = chunk_of(f"a{at + 1}", start=at)
        opened.deliver_with(chunk, progress_of(chunk))
        redis.execute("SCRIPT", "FLUSH")
    assert listed(redis) == "a:1,2,3"
    assert redis.execute("SCRIPT", "EXISTS", COMMAND.name) == [False]


# -- settings


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"url": "http://localhost"}, "not the URL of a Redis"),
        ({"url": "localhost:6379"}, "not the URL of a Redis"),
        ({"command": "FLUSHALL"}, "unknown command"),
        ({"command": ""}, "a command or a script"),
        ({"script": "return 1"}, "a command or a script"),
        ({"command": "HINCRBY"}, "takes 2 arguments"),
        ({"arguments": ()}, "takes 1 to 200 arguments"),
        ({"key": ""}, "pass one key"),
        ({"key": ("a", "b")}, "pass one key"),
        ({"key": "l:{c"}, "not a valid template"),
        ({"key": "l:{}"}, "not a valid template"),
        ({"key": "l:{c!r}"}, "not a valid template"),
        ({"key": "l:{c:>5}"}, "not a valid template"),
        ({"chunk_rows": 0}, "chunk_rows"),
        ({"chunk_rows": 10_001}, "chunk_rows"),
        ({"chunk_bytes": 0}, "chunk_bytes"),
        ({"replicas": -1}, "replicas"),
        ({"replicas_within_s": 60.0}, "replicas_within_s"),
        (
            {"key": ("{{a}}:{c}", "{{b}}:{c}"), "command": "", "script": "return 1"},
            "different hash tags",
        ),
    ],
)
def test_a_setting_that_cannot_be_is_refused_in_words(settings: dict[str, Any], said: str) -> None:
    chosen: dict[str, Any] = {
        "url": "redis://:secret@localhost/0",
        "key": "l:{c}",
        "command": "RPUSH",
        "arguments": ("{id}",),
    }
    with pytest.raises(ConfigurationError, match=said) as error:
        Redis(name="out", **{**chosen, **settings})
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("key", "tag"),
    [
        ("{c}", None),
        ("plain:{c}", None),
        ("{{bank}}:{c}", b"bank"),
        ("x:{{bank}}:{c}", b"bank"),
        ("{c}:{{bank}}", None),
        ("{{}}:{c}", None),
        ("{{bank:{c}}}", None),
    ],
)
def test_the_hash_tag_of_a_key_is_what_no_column_can_change(key: str, tag: bytes | None) -> None:
    sink = Redis(name="out", url="redis://h", key=key, command="RPUSH", arguments=("1",))
    assert sink.tag == tag

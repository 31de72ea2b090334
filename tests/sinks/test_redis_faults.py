"""Redis that is away, full, busy, replaced, restarted or restored: what becomes of the events."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from semel.errors import (
    ConfigurationError,
    Diverged,
    NotDelivered,
    OutcomeUnknown,
    SemelError,
)
from semel.events import Identity
from semel.sinks import Retry
from semel.sinks.redis import Redis
from semel.verify.servers.redis import RedisServer
from support.pipeline import GIVEN, INCREASING, POSITION, events
from support.redis_fixture import ConnectionCut
from support.sinks.redis_pipeline import (
    ROW,
    chunk_of,
    listed,
    lists,
    progress_of,
    session,
    target,
    world_with,
)

ONE = "a1 b2 a3 b4 a5 c6 c7"
ALL = "a:1,3,5 b:2,4 c:6,7"


class Gone(BaseException):
    """The process is gone."""


def until_gone(text: str) -> Iterator[pa.RecordBatch]:
    """Rows, and then the process dies."""
    yield events(text)
    raise Gone


def said(act: Callable[[], object], kind: type[SemelError]) -> str:
    """Do something that fails in this way; give its words, which never have the password."""
    with pytest.raises(kind) as error:
        act()
    assert type(error.value) is kind
    assert RedisServer.password not in str(error.value)
    assert "p%2Fw" not in str(error.value)
    return str(error.value)


def deliver_one(sink: Redis) -> object:
    """Deliver one event in a session of its own."""
    opened = session(sink)
    chunk = chunk_of("a1")
    try:
        return opened.deliver_with(chunk, progress_of(chunk))
    finally:
        opened.close()


# -- the line is cut


@pytest.mark.rows("S11", "S17")
@pytest.mark.parametrize("identity", [GIVEN, INCREASING, POSITION])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_line_that_is_cut_at_any_script_loses_nothing_and_repeats_nothing(
    redis: RedisServer, cut: ConnectionCut, identity: Identity, moment: str
) -> None:
    for number in range(4):
        redis.empty()
        redis.execute("SET", "l:d", "no list")
        world = world_with(lists(redis, cut.port), identity)
        cut.next(moment, skip=number)
        world.minibatch(0, "a1 d2 a3 b4 a5 c6 d7 c8")
        world.minibatch(1, "a9")
        assert listed(redis) == "a:1,3,5,9 b:4 c:6,8"
        assert world.parked() == ["d2 rejected", "d7 rejected"]
    assert cut.cuts == 4


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_lost_reply_is_unknown_and_the_row_tells(
    redis: RedisServer, cut: ConnectionCut, moment: str
) -> None:
    sink = lists(redis, cut.port)
    cut.next("", 0)
    deliver_one(sink)
    chunk = chunk_of("a2", start=1)
    opened = session(sink)
    cut.next(moment)
    said(lambda: opened.deliver_with(chunk, progress_of(chunk)), OutcomeUnknown)
    stood = session(sink, task=2).take_over()
    assert stood is not None
    assert (stood.done, listed(redis)) == ((1, "a:1") if moment == "before" else (2, "a:1,2"))


# -- the process dies, the checkpoint is lost


@pytest.mark.rows("S11", "S17")
@pytest.mark.parametrize("identity", [GIVEN, INCREASING, POSITION])
def test_what_a_dead_attempt_delivered_is_not_repeated(
    redis: RedisServer, identity: Identity
) -> None:
    redis.execute("SET", "l:b", "no list")
    world = world_with(lists(redis), identity)
    opening = world.open(0)
    with pytest.raises(Gone):
        world.task(opening, until_gone("a1 b2 a3 b4"))
    reports = world.task(opening, "a1 b2 a3 b4 a5")
    world.driver.end(opening, reports)
    assert listed(redis, "a") == "a:1,3,5"
    assert world.parked() == ["b2 rejected", "b4 rejected"]


@pytest.mark.rows("S11", "S17")
@pytest.mark.parametrize("identity", [GIVEN, INCREASING, POSITION])
def test_after_a_lost_checkpoint_the_row_tells_what_is_done_and_what_was_refused(
    redis: RedisServer, identity: Identity
) -> None:
    redis.execute("SET", "l:b", "no list")
    world = world_with(lists(redis, chunk_rows=2), identity)
    opening = world.open(0)

    def dies_before_it_parks(*_: object) -> None:
        raise Gone

    world.store.script.extend([lambda act: act(), dies_before_it_parks])
    with pytest.raises(Gone):
        world.task(opening, "a1 b2 a3 b4 a5")
    world.store.script.clear()
    assert listed(redis, "a") == "a:1"
    world.start()
    world.minibatch(0, "a1 b2 a3 b4 a5", query="another")
    assert listed(redis, "a") == "a:1,3,5"
    assert world.parked() == ["b2 rejected", "b4 rejected"]


def test_a_zombie_that_wakes_up_late_changes_nothing(redis: RedisServer) -> None:
    sink = lists(redis)
    world = world_with(sink)
    opening = world.open(0)
    with pytest.raises(Gone):
        world.task(opening, until_gone("a1 b2 a3"), number=1)
    late = chunk_of("b4 a5", start=3)
    zombie = session(sink, task=1)
    world.driver.end(opening, world.task(opening, ONE, number=2))
    with pytest.raises(SemelError, match=r"attempt 1\.2"):
        zombie.deliver_with(late, progress_of(late))
    assert listed(redis) == ALL


# -- the server is away, and comes back


@pytest.fixture
def own() -> Iterator[RedisServer]:
    """A Redis that only this test has: it may stop it."""
    server = RedisServer(settings={"appendfsync": "always"})
    yield server
    server.close()


@pytest.fixture
def forgetful() -> Iterator[RedisServer]:
    """A Redis that persists nothing unless it is configured to."""
    server = RedisServer(settings={"appendonly": "no"})
    yield server
    server.close()


@pytest.mark.rows("S17")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_is_restarted_half_way_goes_on_at_the_exact_event(
    own: RedisServer, how: signal.Signals
) -> None:
    sink = lists(own)
    world = world_with(sink)

    def interrupted() -> Iterator[pa.RecordBatch]:
        yield events("a1 b2 a3 b4")
        own.restart(how)
        yield events("a5 c6 c7")

    opening = world.open(0)
    world.driver.end(opening, world.task(opening, interrupted()))
    world.minibatch(1, "a8")
    assert listed(own) == "a:1,3,5,8 b:2,4 c:6,7"

    own.stop()
    assert "does not answer" in said(lambda: sink.open(target()), NotDelivered)
    opening = world.open(2)
    assert "could not be reached" in said(lambda: world.task(opening, "a9"), NotDelivered)
    assert sink.durability().startswith("unknown: ")
    own.start()
    world.driver.end(opening, world.task(opening, "a9"))
    assert listed(own) == "a:1,3,5,8,9 b:2,4 c:6,7"
    assert world.parked() == []


# -- Redis cannot, at the moment


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"maxmemory": "100kb"}, "OOM"),
        ({"min-replicas-to-write": "1"}, "NOREPLICAS"),
    ],
)
def test_a_redis_that_takes_no_writes_has_written_nothing_and_is_tried_again(
    redis: RedisServer, settings: dict[str, str], word: str
) -> None:
    sink = lists(redis)
    deliver_one(sink)
    before = redis.execute("HGETALL", ROW)
    was = {name: redis.execute("CONFIG", "GET", name)[name.encode()] for name in settings}
    chunk = chunk_of("a2 b3", start=1)
    opened = session(sink)
    for name, value in settings.items():
        redis.execute("CONFIG", "SET", name, value)
    try:
        assert word in said(lambda: opened.deliver_with(chunk, progress_of(chunk)), NotDelivered)
        assert word in said(opened.take_over, NotDelivered)
        assert (listed(redis), redis.execute("HGETALL", ROW)) == ("a:1", before)
    finally:
        for name, value in was.items():
            redis.execute("CONFIG", "SET", name, value)
    opened.deliver_with(chunk, progress_of(chunk))
    assert listed(redis) == "a:1,2 b:3"


def test_memory_that_runs_out_within_a_chunk_lets_the_whole_chunk_in(redis: RedisServer) -> None:
    """Redis looks at its memory when a script begins: so a chunk is taken whole, or not at all."""
    used = int(redis.execute("INFO", "memory")["used_memory"])
    redis.execute("CONFIG", "SET", "maxmemory", used + 9_000_000)
    try:
        opened = session(lists(redis, arguments=("{big}",)))
        batch = pa.RecordBatch.from_pydict(
            {"c": ["a"] * 100, "id": list(range(100)), "big": ["x" * 50_000] * 100}
        )
        chunk = chunk_of(batch)
        assert opened.deliver_with(chunk, progress_of(chunk)).failures == {}
        chunk = chunk_of(batch, start=100)
        assert "OOM" in said(lambda: opened.deliver_with(chunk, progress_of(chunk)), NotDelivered)
        assert redis.execute("LLEN", "l:a") == 100
    finally:
        redis.execute("CONFIG", "SET", "maxmemory", 0)


def test_a_busy_redis_is_tried_again(redis: RedisServer) -> None:
    redis.execute("CONFIG", "SET", "lua-time-limit", 20)
    opened = session(lists(redis))

    def occupy() -> None:
        with pytest.raises(Exception, match="killed"):
            redis.execute("EVAL", "while true do end", 0)

    busy = threading.Thread(target=occupy)
    busy.start()
    chunk = chunk_of("a1")
    try:
        while "BUSY" not in _failure(lambda: redis.execute("GET", "x")):
            pass
        assert "BUSY" in said(lambda: opened.deliver_with(chunk, progress_of(chunk)), NotDelivered)
    finally:
        redis.execute("SCRIPT", "KILL")
        busy.join()
        redis.execute("CONFIG", "SET", "lua-time-limit", 5000)
    opened.deliver_with(chunk, progress_of(chunk))
    assert listed(redis) == "a:1"


def _failure(act: Callable[[], object]) -> str:
    try:
        act()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize(("stale", "word"), [("yes", "READONLY"), ("no", "MASTERDOWN")])
def test_a_primary_that_became_a_replica_is_tried_again(
    own: RedisServer, stale: str, word: str
) -> None:
    sink = lists(own)
    opened = session(sink)
    own.execute("CONFIG", "SET", "replica-serve-stale-data", stale)
    own.execute("REPLICAOF", "127.0.0.1", 1)
    chunk = chunk_of("a1")
    assert word in said(lambda: opened.deliver_with(chunk, progress_of(chunk)), NotDelivered)
    own.execute("REPLICAOF", "NO", "ONE")
    opened.deliver_with(chunk, progress_of(chunk))
    assert listed(own) == "a:1"


@pytest.mark.parametrize(
    "denied",
    [
        "redis.call('INCR', KEYS[1])",
        "return redis.pcall('INCR', KEYS[1])",
        "local told = redis.pcall('INCR', KEYS[1]) if told.err then error('I give up') end",
    ],
    ids=["raised", "passed on", "in words of its own"],
)
def test_what_redis_says_to_a_body_about_all_events_is_not_taken_for_a_refusal_of_one(
    redis: RedisServer, denied: str
) -> None:
    body = f"if ARGV[1] == '{{at}}' then {denied} else redis.call('RPUSH', KEYS[1], ARGV[1]) end"
    rights = ("~*", "+@all", "-incr")
    redis.execute("ACL", "SETUSER", "clerk", "reset", "on", f">{redis.password}", *rights)
    chunk = chunk_of("a1 b2 a3 b4")
    try:
        url = redis.url(user="clerk")
        first = lists(redis, url=url, command="", script=body.replace("{at}", "1"))
        with pytest.raises((ConfigurationError, NotDelivered)):
            session(first).deliver_with(chunk, progress_of(chunk))
        assert (listed(redis), redis.execute("HGET", ROW, "done")) == ("", b"0")
        third = lists(redis, url=url, command="", script=body.replace("{at}", "3"))
        receipt = session(third).deliver_with(chunk, progress_of(chunk))
    finally:
        redis.execute("ACL", "DELUSER", "clerk")
    assert sorted(receipt.failures) == [2, 3]
    assert {type(why) for why in receipt.failures.values()} == {NotDelivered}
    assert str(receipt.failures[3]).startswith("not tried, because an event before it met: ")
    assert listed(redis) == "a:1 b:2"


def test_what_was_not_tried_goes_by_itself_when_the_error_has_passed(redis: RedisServer) -> None:
    body = (
        "if ARGV[1] == '3' then redis.call('INCR', 'threes') end "
        "redis.call('RPUSH', KEYS[1], ARGV[1])"
    )
    rights = ("~*", "+@all", "-incr")
    redis.execute("ACL", "SETUSER", "clerk", "reset", "on", f">{redis.password}", *rights)
    try:
        url = redis.url(user="clerk")
        world = world_with(lists(redis, url=url, command="", script=body, chunk_rows=4))
        world.minibatch(0, "a1 b2 a3 b4 a5 c6")
        assert listed(redis) == "a:1 b:2 c:6"
        assert world.parked() == ["a3 resend", "b4 resend", "a5 waiting"]
        redis.execute("ACL", "SETUSER", "clerk", "+incr")
        world.minibatch(1, "a7 b8")
    finally:
        redis.execute("ACL", "DELUSER", "clerk")
    assert listed(redis) == "a:1,3,5,7 b:2,4,8 c:6"
    assert [each.split()[1] for each in world.parked()] == ["delivered"] * 3


# -- Redis does not allow it


def test_a_wrong_password_stops_with_words_and_without_the_password(redis: RedisServer) -> None:
    url = redis.url().replace("p%2Fw", "p%2Fw-not")
    sink = lists(redis, url=url)
    assert "user and password" in said(lambda: deliver_one(sink), ConfigurationError)
    bare = f"redis://127.0.0.1:{redis.port}/0"
    assert "user and password" in said(
        lambda: deliver_one(lists(redis, url=bare)), ConfigurationError
    )


@pytest.mark.parametrize(
    ("rights", "what"),
    [
        (("~*", "+@all", "-rpush"), "can't run this command"),
        (("~*", "+@all", "-evalsha"), "evalsha"),
        (("~*", "+@all", "-info"), "info"),
        (("~l:*", "+@all"), "keys"),
        (("~semel:*", "+@all"), "keys"),
    ],
)
def test_a_right_that_is_missing_stops_with_words_and_moves_nothing(
    redis: RedisServer, rights: tuple[str, ...], what: str
) -> None:
    redis.execute("ACL", "SETUSER", "clerk", "reset", "on", f">{redis.password}", *rights)
    try:
        sink = lists(redis, url=redis.url(user="clerk"))
        words = said(lambda: deliver_one(sink), ConfigurationError)
        assert what in words
        assert "does not allow it" in words
        assert listed(redis) == ""
        assert redis.execute("HGET", ROW, "done") in (None, b"0")
        assert redis.execute("EXISTS", ROW + "/ids") == 0
    finally:
        redis.execute("ACL", "DELUSER", "clerk")


def test_a_database_or_a_script_that_cannot_be_stops_with_words(redis: RedisServer) -> None:
    assert "is not valid Lua" in said(
        lambda: deliver_one(lists(redis, command="", script="this is not valid Lua")),
        ConfigurationError,
    )
    assert "DB index" in said(
        lambda: deliver_one(lists(redis, url=redis.url(99_999))), ConfigurationError
    )


def test_a_url_that_cannot_be_read_is_refused_without_showing_it(redis: RedisServer) -> None:
    url = "redis://user:hush/hush@127.0.0.1:port/0"
    with pytest.raises(ConfigurationError) as error:
        deliver_one(lists(redis, url=url))
    assert "hush" not in str(error.value)


# -- what Redis keeps


@pytest.mark.rows("S17")
@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
def test_a_redis_that_may_evict_the_row_is_refused(redis: RedisServer, policy: str) -> None:
    redis.execute("CONFIG", "SET", "maxmemory-policy", policy)
    try:
        deliver_one(lists(redis))  # without a limit nothing is evicted
        redis.execute("CONFIG", "SET", "maxmemory", "500mb")
        assert policy in said(lambda: session(lists(redis)), ConfigurationError)
        for other in ("volatile-lru", "volatile-ttl", "noeviction"):
            redis.execute("CONFIG", "SET", "maxmemory-policy", other)
            session(lists(redis)).close()
    finally:
        redis.execute("CONFIG", "SET", "maxmemory", 0)
        redis.execute("CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert redis.execute("TTL", ROW) == -1


def test_the_sink_says_how_durable_its_server_is(own: RedisServer) -> None:
    sink = lists(own)
    assert "appendfsync always: what Redis acknowledged is on its disk" in sink.durability()
    own.execute("CONFIG", "SET", "appendfsync", "everysec")
    assert "the last seconds" in sink.durability()
    own.execute("CONFIG", "SET", "appendonly", "no")
    assert "a restart loses everything" in sink.durability()
    own.execute("CONFIG", "SET", "save", "900 1")
    assert "since the last snapshot" in sink.durability()
    assert "always lost together" in sink.durability()
    own.execute("ACL", "SETUSER", "clerk", "on", f">{own.password}", "~*", "+@all", "-config")
    charge_client = lists(own, url=own.url(user="clerk"))
    assert "unknown" in charge_client.durability()
    own.execute("CONFIG", "SET", "appendonly", "yes")
    assert "appendfsync unknown" in charge_client.durability()


def test_a_snapshot_restores_row_and_effects_to_the_same_moment(forgetful: RedisServer) -> None:
    own = forgetful
    world = world_with(lists(own))
    opening = world.open(0)
    with pytest.raises(Gone):
        world.task(opening, until_gone("a1 b2 a3"))
    own.execute("SAVE")
    with pytest.raises(Gone):
        world.task(opening, until_gone(ONE[:17]))
    assert listed(own) == "a:1,3,5 b:2,4 c:6"
    own.restart(signal.SIGKILL)
    assert listed(own) == "a:1,3 b:2"
    world.driver.end(opening, world.task(opening, ONE))
    assert listed(own) == ALL


@pytest.mark.rows("S17")
def test_a_redis_that_lost_a_complete_minibatch_is_noticed(redis: RedisServer) -> None:
    world = world_with(lists(redis))
    world.minibatch(0, "a1 b2")
    redis.execute("FLUSHALL")
    words = said(lambda: world.minibatch(1, "a3"), Diverged)
    assert f"row {ROW!r}" in words
    assert "2 is the last output sequence number" in words
    assert "it has nothing" in words
    assert listed(redis) == ""


def test_a_redis_that_came_up_with_an_older_snapshot_is_noticed(forgetful: RedisServer) -> None:
    own = forgetful
    world = world_with(lists(own))
    world.minibatch(0, "a1 b2")
    own.execute("SAVE")
    world.minibatch(1, "a3 b4")
    own.restart(signal.SIGKILL)
    assert listed(own) == "a:1 b:2"
    words = said(lambda: world.minibatch(2, "a5"), Diverged)
    assert "4 is the last output sequence number" in words
    assert "it has only 2" in words
    world.start()
    assert "it has only 2" in said(lambda: world.minibatch(2, "a5"), Diverged)  # asked this time
    assert listed(own) == "a:1 b:2"


def test_a_redis_that_lost_a_part_of_a_minibatch_is_noticed(forgetful: RedisServer) -> None:
    own = forgetful
    world = world_with(lists(own))

    def interrupted() -> Iterator[pa.RecordBatch]:
        yield events("a1 b2 a3")
        own.stop(signal.SIGKILL)
        own.forget()
        own.start()
        yield events("b4 a5 c6")

    opening = world.open(0)
    assert "it has nothing" in said(lambda: world.task(opening, interrupted()), Diverged)
    assert listed(own) == ""


# -- replicas


def test_with_replicas_a_chunk_counts_when_they_have_it(own: RedisServer) -> None:
    follows = {"replicaof": f"127.0.0.1 {own.port}", "appendonly": "no"}
    replica = RedisServer(settings=follows)
    try:
        _wait_until(lambda: own.execute("WAIT", 1, 1000) == 1)
        patience = Retry(first_s=0.01, most_s=0.1, for_s=1)
        sink = lists(own, replicas=1, replicas_within_s=0.2, retry=patience)
        world = world_with(sink)
        world.minibatch(0, "a1 b2 a3 b4")
        assert listed(replica) == "a:1,3 b:2,4"
        assert "1 replicas follow" in sink.durability()
        replica.stop()
        opened = sink.open(target(partition="another"))
        chunk = chunk_of("d1")
        wanted = progress_of(chunk)
        assert "0 of 1 replicas" in said(lambda: opened.deliver_with(chunk, wanted), OutcomeUnknown)
        assert "0 of 1 replicas" in said(opened.take_over, OutcomeUnknown)
        opening = world.open(1)
        said(lambda: world.task(opening, "a5 b6"), NotDelivered)
        replica.start()
        _wait_until(lambda: own.execute("INFO", "replication")["connected_slaves"] == 1)
        world.driver.end(opening, world.task(opening, "a5 b6"))
        assert listed(own) == "a:1,3,5 b:2,4,6"
    finally:
        replica.close()


def _wait_until(holds: Callable[[], bool]) -> None:
    for _ in range(500):
        if holds():
            return
        threading.Event().wait(0.02)
    raise AssertionError("it does not come to that")


# -- a cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisServer]:
    """A cluster of one node that has all slots."""
    server = RedisServer(cluster=True)
    yield server
    server.close()


@pytest.mark.rows("S17")
def test_in_a_cluster_row_and_keys_share_one_slot(cluster: RedisServer) -> None:
    cluster.execute("FLUSHALL")
    world = world_with(lists(cluster, key="{{bank}}:l:{c}"))
    world.minibatch(0, ONE)
    world.minibatch(1, "a8")
    found = cluster.execute("KEYS", "*")
    assert b"semel:{bank}:pay/out/0" in found
    assert len({cluster.execute("CLUSTER", "KEYSLOT", each) for each in found}) == 1
    assert cluster.execute("LRANGE", "{bank}:l:a", 0, -1) == [b"1", b"3", b"5", b"8"]


def test_in_a_cluster_no_value_can_leave_the_slot(cluster: RedisServer) -> None:
    cluster.execute("FLUSHALL")
    world = world_with(lists(cluster, key="{{bank}}:l:{v}:{c}"))
    batch = pa.RecordBatch.from_pydict(
        {"c": ["a", "b", "c"], "id": [1, 2, 3], "v": ["{other}", "}{x}", "{{y}}"]}
    )
    world.driver.end(opening := world.open(0), world.task(opening, [batch]))
    assert world.parked() == []
    assert cluster.execute("LRANGE", "{bank}:l:{other}:a", 0, -1) == [b"1"]


@pytest.mark.parametrize("key", ["l:{c}", "{c}:{{bank}}", "{{}}:{c}"])
def test_in_a_cluster_keys_without_a_common_tag_are_refused(cluster: RedisServer, key: str) -> None:
    words = said(lambda: session(lists(cluster, key=key)), ConfigurationError)
    assert "is a cluster" in words
    assert "{{balances}}:{customer}" in words


def test_a_cluster_that_does_not_serve_the_slot_is_tried_again(cluster: RedisServer) -> None:
    cluster.execute("FLUSHALL")
    sink = lists(cluster, key="{{bank}}:l:{c}")
    slot = cluster.execute("CLUSTER", "KEYSLOT", "{bank}")
    opened = session(sink)
    chunk = chunk_of("a1")
    cluster.execute("CLUSTER", "DELSLOTS", slot)
    try:
        _wait_until(lambda: "ClusterDown" in _failure(lambda: cluster.execute("GET", "{bank}")))
        assert "CLUSTERDOWN" in said(
            lambda: opened.deliver_with(chunk, progress_of(chunk)), NotDelivered
        )
    finally:
        cluster.execute("CLUSTER", "ADDSLOTS", slot)
    _wait_until(lambda: not _failure(lambda: cluster.execute("GET", "{bank}")))
    opened.deliver_with(chunk, progress_of(chunk))
    assert cluster.execute("LRANGE", "{bank}:l:a", 0, -1) == [b"1"]


def test_a_session_goes_to_the_node_that_has_the_slot(cluster: RedisServer) -> None:
    cluster.execute("FLUSHALL")
    other = RedisServer(cluster=True, settings={"cluster-node-timeout": "2000"})
    try:
        other.execute("CLUSTER", "FLUSHSLOTS")
        other.execute("CLUSTER", "MEET", "127.0.0.1", cluster.port)
        _wait_until(lambda: "Moved" in _failure(lambda: other.execute("GET", "{bank}")))
        sink = lists(other, key="{{bank}}:l:{c}")
        world = world_with(sink)
        world.minibatch(0, ONE)
        assert cluster.execute("LRANGE", "{bank}:l:a", 0, -1) == [b"1", b"3", b"5"]
    finally:
        other.close()


LOCKED = """
    if ARGV[1] == '2' then return redis.error_reply('BUSY the account is locked') end
    redis.call('RPUSH', KEYS[1], ARGV[1])
"""


@pytest.mark.parametrize("ids", ["a1 a2 b3", "a2 b3 c4"], ids=["in the middle", "first"])
def test_a_body_that_refuses_one_event_refuses_no_other(redis: RedisServer, ids: str) -> None:
    sink = lists(redis, command="", script=LOCKED)
    held = session(sink)
    held.take_over()
    chunk = chunk_of(ids)
    receipt = held.deliver_with(chunk, progress_of(chunk))
    assert list(receipt.failures) == [ids.split().index("a2")]
    assert "b:3" in listed(redis)

"""A whole ledger is checked: nothing is found where nothing is wrong, and everything that is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from delivery.test_finding import IDENTITIES
from semel.ledger import payloads
from semel.ledger.inspect.check import check_ledger
from semel.ledger.store.commit import Key
from semel.ledger.verbs.divergence import judge_minibatch
from semel.ledger.verbs.pruning import REMEMBER_S, Pruning
from semel.protocol import Judgement, OnDoubt, OnReject
from semel.verify.simulator.cluster import MemoryStore
from support.destinations import lost
from support.ledger.crashed_pipelines import INPUTS, crash_in_the_middle, load, read
from support.pipeline import KINDS, World, crash_everywhere, world_like


def problems(store: Any) -> list[str]:
    return [f"{each.table} {each.key}: {each.what}" for each in check_ledger(store)[1]]


# -- where nothing is wrong


def test_nothing_is_wrong_with_what_0_1_left_in_the_middle_of_a_crash() -> None:
    store = MemoryStore()
    rows, _ = read()
    load(store, rows)
    assert check_ledger(store) == (len(rows), [])


@pytest.mark.parametrize("name", INPUTS)
def test_nothing_is_wrong_after_the_same_crash_now(name: str) -> None:
    assert problems(crash_in_the_middle(name).store.memory) == []


def busy(world: World) -> None:
    """A minibatch in which an event is in doubt and one is refused, a resend, and the next."""
    world.minibatch(0, "a1 b2")
    world.out.plan(lost)
    world.out.refuses.add("c5")
    world.minibatch(1, "a3 b4 c5 a6")
    for name in [each.split()[0] for each in world.parked() if each.endswith(("held", "rejected"))]:
        world.resolve(name, "discarded" if name == "c5" else "resend")
    world.clock.move(100)
    world.driver.drain()
    world.minibatch(2, "a7 c8")
    judge_minibatch(world.client, world.opened().minibatch, Judgement.AS_REPLAYED, "ann", "looked")
    world.start()
    world.minibatch(2, "a7=1 c8=1")
    if "counter" not in str(world.identity.describe()):
        world.minibatch(0, "a7=1 c8=1 a9", query="another")


@pytest.mark.parametrize("identity", ["position", "given", "increasing", "counter"])
@pytest.mark.parametrize("kind", ["opaque", "repeatable", "transactional", "sequenced"])
def test_nothing_is_wrong_at_any_crash(kind: str, identity: str) -> None:
    def make() -> World:
        return world_like(kind, IDENTITIES[identity], chunk_rows=2, on_reject=OnReject.BLOCK)

    for what, world in crash_everywhere(make, busy):
        assert problems(world.store.memory) == [], what


def test_nothing_is_wrong_when_what_waited_was_refused_and_discarded() -> None:
    world = world_like("opaque", on_reject=OnReject.BLOCK)
    world.out.refuses.update({"a1", "a2"})
    world.minibatch(0, "a1 a2 a3")
    for name in ("a1", "a2"):
        world.resolve(name, "discarded")
        assert problems(world.store.memory) == []
        world.driver.drain()
        assert problems(world.store.memory) == []
    assert world.out.seen == "a3"


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_wrong_after_pruning(kind: str) -> None:
    policy = OnDoubt.SKIP if kind.startswith("opaque") else OnDoubt.HOLD
    world = world_like(kind, on_doubt=policy)
    world.out.plan(lost)
    for batch in range(4):
        world.minibatch(batch, f"a{batch + 1} b{batch + 10}")
    world.clock.move(3 * REMEMBER_S)
    world.minibatch(4, "a50")
    Pruning(world.client).run(["out"])
    world.clock.move(1)
    assert problems(world.store.memory) == []


# -- planted violations are found

Change = Callable[[dict[str, Any]], object]


def without(name: str) -> Change:
    return lambda row: row.pop(name)


def with_(**fields: Any) -> Change:
    return lambda row: row.update(fields)


def within(name: str, change: Change) -> Change:
    return lambda row: change(row[name])


def shifted(name: str, by: int) -> Change:
    return lambda row: row.update({name: row[name] + by})


def _mark_sent(row: dict[str, Any]) -> None:
    row["after"]["sent"] = row["after"]["osn"] + 1


def _fall(row: dict[str, Any]) -> None:
    row["after"]["osn"] = row["after"]["sent"] = 0


def _no_ids(row: dict[str, Any]) -> None:
    row["ids"] = [{} for _ in row["ids"]]


def _forget_an_entity(row: dict[str, Any]) -> None:
    row["state"].pop("aa")


def _flip_a_packed_id(row: dict[str, Any]) -> None:
    [packed] = row["state"].values()
    text = packed["packed"]
    middle = len(text) // 2
    other = "A" if text[middle] != "A" else "B"
    packed["packed"] = f"00000000:{text[:middle]}{other}{text[middle + 1 :]}"


def _other_columns(row: dict[str, Any]) -> None:
    row["value"].pop("v")


PLANTED: Mapping[str, tuple[str, str, Change, str]] = {
    "a field is missing": ("open", "given", without("serial"), "'serial' is missing"),
    "a state is unknown": ("streams", "given/base/a1/a1/0", with_(state="done"), "'state' must be"),
    "a type is another": ("owners", "given", with_(run="7"), "'run' must be an integer"),
    "a slot cannot be read": ("owners", "given/resend/post/~", without("token"), "'token'"),
    "a pipeline has no identity": ("pipelines", "given", without("identity"), "'identity'"),
    "a chunk is empty": (
        "events",
        "given/post/a1/a1/0/a0",
        with_(chunks=[[1, 1]]),
        "ranges that follow",
    ),
    "a payload has another schema": (
        "parked",
        "given/post/a/e30001/a1/a1",
        _other_columns,
        "the same columns",
    ),
    "a schema is damaged": ("parked", "given/post/a/e30001/a1/a1", with_(schema="QUJD"), "read"),
    "a packed set is damaged": (
        "journal",
        "given/watermark:post/0/a1",
        _flip_a_packed_id,
        "cannot be read",
    ),
    "a counter is a text": (
        "journal",
        "counter/counters/0/a1",
        within("state", with_(aa="x")),
        "a count for each entity",
    ),
    "an id that increases has no generation": (
        "journal",
        "increasing/watermark:post/0/a1",
        within("state", with_(a=[1])),
        "an id and a generation",
    ),
    "a key names another partition": (
        "streams",
        "given/base/a1/a1/0",
        with_(partition="1"),
        "'partition'",
    ),
    "a key names another span": ("events", "given/post/a1/a1/0/a0", with_(number=7), "'number'"),
    "a key names another event": (
        "parked",
        "given/post/a/e30001/a1/a1",
        with_(event=5),
        "'event'",
    ),
    "a key names another entity": ("heads", "given/post/a", with_(entity="b"), "'entity'"),
    "a journal's key has another number": (
        "journal",
        "counter/counters/0/a3",
        with_(number=2),
        "the number in its key",
    ),
    "a run is older than the one that opened": ("owners", "given", with_(run=0), "older than run"),
    "a partition is of a later run": (
        "streams",
        "given/base/a1/a2/0",
        with_(attempt=[9, 1]),
        "a later run",
    ),
    "a complete partition has no digest": (
        "streams",
        "given/base/a1/a1/0",
        with_(digest=None),
        "without a count or a digest",
    ),
    "a partition is pending in a complete minibatch": (
        "streams",
        "given/base/a1/a1/0",
        with_(state="pending"),
        "pending in a minibatch that is complete",
    ),
    "a partition numbers on from elsewhere": (
        "streams",
        "given/base/a1/a2/0",
        shifted("osn", 1),
        "it continues from number",
    ),
    "a number was transmitted and never given": (
        "sequences",
        "given/base/0",
        _mark_sent,
        "was never assigned",
    ),
    "output sequence numbers fall": ("sequences", "given/base/0", _fall, "numbers decrease"),
    "a later minibatch moved a sequence": (
        "sequences",
        "given/base/0",
        lambda row: row["before"][-1].__setitem__(0, 99),
        "never opened",
    ),
    "a chunk has no ids": ("events", "given/post/a1/a1/0/a0", _no_ids, "one id for each event"),
    "a span has too many numbers": (
        "events",
        "given/post/a1/a1/0/a0",
        lambda row: row["osn"].__setitem__(1, row["osn"][1] + 5),
        "one output sequence number for each event",
    ),
    "spans do not follow each other": (
        "events",
        "given/post/a1/a1/0/a1",
        lambda row: row.update(chunks=[[3, 4]]),
        "it begins at 3",
    ),
    "a span before the last is not settled": (
        "events",
        "given/post/a1/a1/0/a0",
        with_(state="intended"),
        "a later span is recorded",
    ),
    "an event is sent and no slot has it": (
        "owners",
        "given/resend/post/~",
        with_(current=None),
        "the slot of its sink",
    ),
    "a slot has an event that is not there": (
        "owners",
        "given/resend/post/~",
        with_(current="given/post/zz/a1/a1/a1"),
        "does not exist",
    ),
    "more events wait than are parked": (
        "heads",
        "given/post/a",
        with_(waiting=9),
        "waiting events",
    ),
    "a counter falls": (
        "journal",
        "counter/counters/0/a5",
        within("state", with_(aa=1)),
        "behind its earlier value",
    ),
    "a full snapshot forgets an entity": (
        "journal",
        "counter/counters/0/a4",
        _forget_an_entity,
        "behind its earlier value",
    ),
    "a newest minibatch is not the newest": ("open", "given", shifted("batch", -1), "later"),
}


def of_0_1() -> MemoryStore:
    store = MemoryStore()
    load(store, read()[0])
    return store


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found(name: str) -> None:
    table, key, change, says = PLANTED[name]
    store = of_0_1()
    rows = store._tables[table]
    row = payloads.load_payload(rows[key])
    change(row)
    rows[key] = json.dumps(row, sort_keys=True, separators=(",", ":"))
    found = problems(store)
    assert any(says in each for each in found), found


REMOVED = {
    "its pipeline is not registered": ("pipelines", "given"),
    "its pipeline has no owner": ("owners", "given"),
    "no minibatch of its pipeline is open": ("open", "given"),
    "no row in `streams`": ("streams", "given/post/a1/a2/0"),
    "`sequences` has no row for it": ("sequences", "given/base/0"),
    "the entity has no head": ("heads", "given/post/a"),
    "names a parked event that does not exist": ("parked", "given/post/b/e30002/a1/a1"),
    "not in the journal": ("journal", "given/watermark:base/0/a2"),
    "the span before it ends at 0": ("events", "given/post/a1/a1/0/a0"),
}


@pytest.mark.parametrize("says", REMOVED)
def test_a_row_that_is_missing_is_found(says: str) -> None:
    table, key = REMOVED[says]
    store = of_0_1()
    del store._tables[table][key]
    found = problems(store)
    assert any(says in each for each in found), found


def test_a_row_that_belongs_to_nothing_is_found() -> None:
    store = of_0_1()
    store._tables["sequences"]["given/mail/0"] = store._tables["sequences"]["given/base/0"]
    store._tables["journal"]["given/watermark:post/0/b99"] = store._tables["journal"][
        "given/watermark:post/0/a2"
    ].replace('"number":2', '"number":99')
    store._tables["streams"]["given/x"] = store._tables["streams"]["given/base/a1/a1/0"]
    told = "\n".join(problems(store))
    assert "its sink is not registered for its pipeline" in told
    assert "its minibatch was never opened" in told
    assert "its key has the wrong number of parts" in told


def test_what_a_running_pipeline_changes_between_two_looks_is_not_called_wrong() -> None:
    store = of_0_1()
    head = store._tables["heads"].pop("given/post/a")
    scans: list[str] = []
    scan = store.scan

    def watched(table: str, prefix: str, **others: Any) -> Any:
        scans.append(table)
        if scans.count("pipelines") == 2:
            store._tables["heads"]["given/post/a"] = head
        return scan(table, prefix, **others)

    store.scan = watched  # type: ignore[method-assign]
    assert problems(store) == []


def test_what_is_wrong_shows_nothing_of_what_a_row_holds() -> None:
    store = of_0_1()
    at = Key("parked", "given/post/a/e30001/a1/a1")
    text = store._tables["parked"][at.key]
    store._tables["parked"][at.key] = text.replace('"attempts":0', '"attempts":"hunter2"')
    [found] = problems(store)
    assert "hunter2" not in found

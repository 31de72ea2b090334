"""A ledger that 0.1 left in the middle of a crash is continued: nothing twice, nothing lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.ledger import Ledger, open_store
from semel.ledger.rows import OpenRow
from semel.ledger.store.commit import Store
from semel.protocol import ParkedState
from support.ledger.crashed_pipelines import INPUTS, load, read, restored
from support.pipeline import World

SURVIVES = ("given", "increasing", "position")


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    postgres = request.param == "postgres"
    url = request.getfixturevalue("postgres_url") if postgres else f"sqlite:///{tmp_path}/older.db"
    opened = open_store(url)
    load(opened, read()[0])
    yield opened
    opened.close()


def crashed(name: str, store: Store) -> World:
    return restored(name, store, read()[1])


def go_on(world: World) -> None:
    """Start the query again: Spark replays the batch that was open."""
    world.start()
    batch = len(INPUTS[world.name]) - 1
    world.minibatch(batch, INPUTS[world.name][batch])


def decide(world: World) -> None:
    """A person looks at each destination and resolves every parked event."""
    for sink, destination in world.destinations.items():
        for _, row in world.parked_rows(sink):
            if row.state in (ParkedState.HELD, ParkedState.REJECTED):
                name = world._name(row)
                arrived = name in destination.seen.split()
                world.resolve(name, "delivered" if arrived else "resend", sink)
    world.clock.move(3_600)
    world.driver.drain()


ALL = ("absorb", "register", "base", "log", "post")
OLD_AND_HELD: dict[str, tuple[tuple[str, int], tuple[str, int]]] = {
    "given": (("c", 14), ("a", 30_001)),
    "increasing": (("a", 1), ("a", 4)),
    "position": (("t/0", 0), ("t/0", 3)),
    "counter": (("aa", 1), ("aa", 5)),
}
"""Of each pipeline: an event of a minibatch that is swept, and the one that is held."""


def states(ledger: Ledger, name: str, event: tuple[str, int]) -> dict[str, str]:
    return {trace.sink: trace.state for trace in ledger.find(name, *event)}


def recent(name: str) -> Counter[str]:
    return Counter(" ".join(INPUTS[name][-2:]).split())


def test_the_ledger_of_0_1_was_left_in_the_middle_of_everything() -> None:
    rows, _ = read()
    tables = Counter(row.key.table for row in rows)
    assert min(tables.values()) > 0
    texts = [row.payload for row in rows]
    for word in ("held", "rejected", "waiting", "sending", "intended", "settled", "pending"):
        assert any(f'"state":"{word}"' in text for text in texts), word
    for word in ('"packed":', '"full":true', '"full":false', '"complete":false'):
        assert any(word in text for text in texts), word


@pytest.mark.parametrize("name", INPUTS)
def test_exactly_the_missing_events_are_delivered_and_what_is_parked_can_be_resolved(
    name: str, store: Store
) -> None:
    world = crashed(name, store)
    go_on(world)
    for sink, destination in world.destinations.items():
        seen = Counter(destination.seen.split())
        assert max(seen.values()) == 1, sink
        assert set(seen) <= set(recent(name)), sink
        waits = {world._name(row) for _, row in world.parked_rows(sink) if not row.state.final}
        assert set(recent(name)) == set(seen) | waits, sink
    decide(world)
    for batch in range(len(INPUTS[name]), len(INPUTS[name]) + 3):  # a log takes resends in a task
        world.minibatch(batch, f"z{1_000_000 + batch}")
        decide(world)
    more = Counter(f"z{1_000_000 + len(INPUTS[name]) + at}" for at in range(3))
    for sink, destination in world.destinations.items():
        assert Counter(destination.seen.split()) == recent(name) + more, sink
        assert [row for _, row in world.parked_rows(sink) if not row.state.final] == [], sink
        assert world.heads(sink) == [], sink


@pytest.mark.parametrize("name", SURVIVES)
def test_a_checkpoint_that_is_lost_after_the_crash_repeats_nothing(name: str, store: Store) -> None:
    world = crashed(name, store)
    world.start()
    for batch, text in enumerate(INPUTS[name]):
        world.minibatch(batch, text, query="another")
    decide(world)
    for batch in range(len(INPUTS[name]), len(INPUTS[name]) + 2):
        world.minibatch(batch, f"z{1_000_000 + batch}", query="another")
        decide(world)
    for sink, destination in world.destinations.items():
        seen = Counter(each for each in destination.seen.split() if not each.startswith("z"))
        assert seen == recent(name), sink


@pytest.mark.parametrize("name", INPUTS)
def test_the_ledger_of_0_1_answers_before_and_after_it_is_continued(
    name: str, store: Store
) -> None:
    ledger = Ledger(store)
    assert sorted(ledger.pipelines()) == sorted(INPUTS)
    summary = ledger.summary(name)
    assert summary.complete is False
    assert summary.sinks["post"].parked[ParkedState.HELD] == 1
    assert len(ledger.parked(name)) > 2
    older, first = OLD_AND_HELD[name]
    assert states(ledger, name, older) == dict.fromkeys(ALL, "handled")
    held = states(ledger, name, first)
    assert held.pop("post") == "in doubt"
    assert set(held.values()) == {"delivered"}
    world = crashed(name, store)
    go_on(world)
    assert ledger.summary(name).complete is True
    assert states(ledger, name, older) == dict.fromkeys(ALL, "handled")
    assert states(ledger, name, first)["post"] == "in doubt"
    world.resolve(INPUTS[name][-2].split()[0], "discarded", "post")
    assert states(ledger, name, first)["post"] == "discarded"


def test_the_rows_of_0_1_are_read_and_written_as_they_were(store: Store) -> None:
    for at, text in store.scan("open", ""):
        assert OpenRow.load(text).dump() == text, at

"""The bounds of a checkpoint: it never moves back, never beyond what was delivered; the same again
changes nothing; and a new intent takes the place of the one before.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from semel.errors import Diverged, NotDelivered
from semel.events.event import EventID
from semel.ledger.rows import SpanRow
from semel.ledger.store.commit import Requirement, Update
from semel.ledger.verbs.complete import SequenceRow
from semel.protocol import SpanState
from semel.sinks import Retry
from support.destinations import Crash, away, crash, crash_after, fine
from support.pipeline import (
    EXACT,
    KINDS,
    POSITION,
    World,
    crash_everywhere,
    world_like,
)

STANDS = ("streams", "events", "sequences", "parked", "journal", "heads")


def checkpoint(world: World) -> EventID | None:
    """The position up to which everything is handled, as the ledger keeps it."""
    rows = [SequenceRow.load(text) for _, text in world.store.memory.scan("sequences", "")]
    return max((row.after.mark.upto for row in rows if row.after.mark), default=None)  # type: ignore[type-var]


def contents(world: World) -> dict[str, str]:
    """Everything the ledger keeps of what was delivered."""
    return {
        f"{table} {at.key}": text
        for table in STANDS
        for at, text in world.store.memory.scan(table, "")
    }


@pytest.mark.rows("A20")
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_never_moves_back(kind: str) -> None:
    world = world_like(kind, POSITION, chunk_rows=2, span_chunks=1)
    world.minibatch(0, "a1 b2 a3")
    before = contents(world)
    for older in ("a1", "b2 a3", "a3 b4"):
        opening = world.open(1)
        with pytest.raises(Diverged):
            world.driver.end(opening, world.task(opening, older))
        assert checkpoint(world) == 3
        assert contents(world) == before
    assert world.out.seen == "a1 b2 a3"


@pytest.mark.rows("A20")
@pytest.mark.parametrize("kind", EXACT)
def test_wherever_it_crashes_a_checkpoint_lies_between_the_last_and_the_highest_delivered(
    kind: str,
) -> None:
    def make() -> World:
        world = world_like(kind, POSITION, chunk_rows=1, span_chunks=1)
        world.minibatch(0, "a1 b2")
        return world

    def deliver(world: World) -> None:
        opening = world.open(1)
        world.driver.end(opening, world.task(opening, "a3 b4 a5"))

    reached = set()
    for what, world in crash_everywhere(make, deliver):
        at = checkpoint(world)
        assert isinstance(at, int), what
        assert 2 <= at <= max(effect.value["offset"] for effect in world.out.effects), what
        reached.add(at)
    assert reached == {2, 5}  # before complete nothing moves, with it all of it


@pytest.mark.rows("A20")
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_minibatch_again_changes_nothing(kind: str) -> None:
    world = world_like(kind, POSITION, chunk_rows=2, span_chunks=1)
    world.minibatch(0, "a1 b2 a3")
    before = contents(world)
    calls = len(world.out.calls)
    for _ in range(2):
        world.start()
        [report] = world.minibatch(0, "a1 b2 a3")
        assert (report.delivered, report.count) == (0, 3)
        assert contents(world) == before
    assert len(world.out.calls) == calls


def intents(world: World) -> list[SpanRow]:
    return [span for span in world.spans() if span.state is SpanState.INTENDED]


def watch_intents(world: World) -> list[int]:
    """Count the open intents after every commit."""
    counted: list[int] = []
    commit = world.store.memory.commit

    def counting(requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        commit(requirements, updates)
        counted.append(len(intents(world)))

    world.store.memory.commit = counting  # type: ignore[method-assign]
    return counted


@pytest.mark.rows("A20")
@pytest.mark.parametrize("kind", ["opaque", "repeatable", "repeatable by chunk", "probing"])
def test_a_new_intent_takes_the_place_of_the_one_before(kind: str) -> None:
    world = world_like(kind, POSITION, chunk_rows=2, span_chunks=1)
    counted = watch_intents(world)
    opening = world.open(0)
    world.out.plan(*[fine] * (3 if kind == "opaque" else 1), crash_after)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2 a3 b4 a5 b6 a7 b8")
    [left] = intents(world)
    world.out.plan(fine, crash)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2 a3 b4 a5 b6 a7 b8")
    [after] = intents(world)
    assert after.start >= left.start
    world.task(opening, "a1 b2 a3 b4 a5 b6 a7 b8")
    assert max(counted) == 1
    seen = world.out.seen.split()
    assert len(seen) == len(set(seen))


@pytest.mark.rows("A20")
def test_an_intent_of_which_nothing_was_sent_is_replaced_by_one_of_another_range() -> None:
    patience = Retry(for_s=0)
    world = world_like("opaque", POSITION, chunk_rows=2, retry=patience)
    opening = world.open(0)
    world.out.plan(away)
    with pytest.raises(NotDelivered):
        world.task(opening, "a1 b2 a3 b4")
    assert intents(world) == []  # nothing arrived, so nothing is left in doubt
    world.sinks[0] = world.out.sink(window=3, retry=patience)
    world.out.plan(fine, fine, crash)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2 a3 b4")
    [span] = intents(world)
    assert (span.number, span.start, span.stop) == (0, 0, 3)

"""What driver and tasks notify an observer of: typed events with counts, bytes and seconds."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from semel.delivery import LogObserver, Observers
from semel.delivery.observer import (
    ChunkDelivered,
    DeliveryEvent,
    EventResent,
    EventsSetAside,
    EventsSkipped,
    EventsSuppressed,
    Figures,
    FirstFailure,
    MinibatchCompleted,
    MinibatchOpened,
    StageStopped,
)
from semel.events import Identity, Minibatch
from semel.ledger.verbs.complete import Report
from support.destinations import Database, Destination, Post, lost
from support.pipeline import COUNTER, GIVEN, World, events

T = TypeVar("T")

INPUT = "a1 a2 b3 b4 c5 c6"


class Witness:
    """An observer that remembers everything."""

    def __init__(self) -> None:
        self.seen: list[DeliveryEvent] = []

    def observe(self, event: DeliveryEvent) -> None:
        self.seen.append(event)

    def of(self, kind: type[T]) -> list[T]:
        return [each for each in self.seen if isinstance(each, kind)]

    def kinds(self) -> list[str]:
        return [type(each).__name__ for each in self.seen]


def watched(
    destination: Destination, identity: Identity = GIVEN, **settings: Any
) -> tuple[World, Witness]:
    """A started pipeline with one sink, and its observer."""
    witness = Witness()
    world = World(identity, observer=witness)
    world.add(destination, **settings)
    world.start()
    return world, witness


def test_a_minibatch_is_opened_delivered_in_chunks_and_completed() -> None:
    world, witness = watched(Database(), chunk_rows=4)
    world.minibatch(0, INPUT)
    assert witness.kinds() == [
        "MinibatchOpened",
        "ChunkDelivered",
        "ChunkDelivered",
        "MinibatchCompleted",
    ]
    [opened] = witness.of(MinibatchOpened)
    assert (opened.pipeline, opened.minibatch, opened.run) == ("pay", Minibatch(1, 0), 1)
    assert (opened.new_generation, opened.judged, opened.settled) == (False, False, False)
    chunks = witness.of(ChunkDelivered)
    assert [(each.sink, each.partition, each.count) for each in chunks] == [
        ("out", "0", 4),
        ("out", "0", 2),
    ]
    assert [each.bytes for each in chunks] == [events(INPUT).slice(0, 4).nbytes, chunks[1].bytes]
    [completed] = witness.of(MinibatchCompleted)
    assert completed.figures == {
        "out": Figures(delivered=6, bytes=sum(each.bytes for each in chunks))
    }


def test_seconds_are_those_of_the_runtimes_clock() -> None:
    world, witness = watched(Post())

    def slowly(act: Callable[[], object]) -> object:
        world.clock.move(0.5)
        return act()

    world.out.plan(slowly)
    opening = world.open(0)
    reports = world.task(opening, "a1")
    world.clock.move(2)
    world.driver.end(opening, reports)
    assert [each.seconds for each in witness.of(ChunkDelivered)] == [0.5]
    assert [each.seconds for each in witness.of(MinibatchCompleted)] == [2.5]
    assert reports[0].seconds == 0.5


def test_a_task_makes_an_event_for_a_chunk_and_none_for_a_row() -> None:
    world, witness = watched(Database(), chunk_rows=500)
    rows = {"c": [f"c{at:04}" for at in range(2_000)], "id": list(range(2_000))}
    opening = world.open(0)
    world.driver.end(opening, world.task(opening, [pa.RecordBatch.from_pydict(rows)]))
    assert [each.count for each in witness.of(ChunkDelivered)] == [500] * 4
    assert len(witness.seen) == 6


def test_parked_events_and_those_of_an_earlier_attempt_are_told_apart() -> None:
    world, witness = watched(Post())
    world.out.plan(lost)
    opening = world.open(0)
    world.task(opening, INPUT)
    parked = witness.of(EventsSetAside)
    assert (sum(each.parked for each in parked), sum(each.doubted for each in parked)) == (2, 1)
    assert sum(each.count for each in witness.of(ChunkDelivered)) == 4
    witness.seen.clear()
    world.driver.end(opening, world.task(opening, INPUT))
    again = witness.of(EventsSuppressed)
    assert (sum(each.delivered for each in again), sum(each.parked for each in again)) == (4, 2)
    assert not witness.of(ChunkDelivered)
    [completed] = witness.of(MinibatchCompleted)
    assert completed.figures["out"] == Figures(suppressed=4, parked_before=2)


def test_what_was_handled_before_a_lost_checkpoint_is_skipped() -> None:
    world, witness = watched(Post())
    world.minibatch(0, "a1 b2")
    world.start()
    witness.seen.clear()
    opening = world.open(0, "another")
    reports = world.task(opening, "a1 b2 c3")
    world.driver.end(opening, reports, skipped=5)
    [opened] = witness.of(MinibatchOpened)
    assert (opened.new_generation, opened.minibatch.generation) == (True, 2)
    assert [each.count for each in witness.of(EventsSkipped)] == [2]
    [completed] = witness.of(MinibatchCompleted)
    assert (completed.figures["out"].skipped, completed.skipped) == (2, 5)
    assert completed.figures["out"].delivered == 1


def test_a_resend_is_an_event() -> None:
    world, witness = watched(Post())
    world.out.plan(lost)
    world.minibatch(0, "a1 b2")
    world.clock.move(10_000)
    world.resolve("a1", "resend")
    world.driver.drain()
    [resent] = witness.of(EventResent)
    assert (resent.sink, resent.entity, resent.event, resent.by) == ("out", "a", 1, "ann")
    assert resent.outcome.startswith("delivered")


def test_the_first_failure_of_a_kind_is_an_event() -> None:
    world, witness = watched(Post())

    def fails(_: Callable[[], object]) -> object:
        raise ConnectionError("cut")

    world.out.plan(fails, fails)
    world.minibatch(0, "a1 b2 c3")
    [failure] = witness.of(FirstFailure)
    assert failure.kind == "ConnectionError"
    assert "Traceback" in failure.trace


def test_what_tasks_read_and_write_of_the_state_reaches_the_driver() -> None:
    world, witness = watched(Post(), COUNTER)
    world.minibatch(0, "a1 b2")
    world.minibatch(1, "a3")
    first, second = (each.snapshots for each in witness.of(MinibatchCompleted))
    assert (first.journal_created, first.journal_loaded) == (1, 0)
    assert (second.journal_created, second.journal_loaded) == (1, 1)
    assert second.bytes_loaded == first.bytes_created


def test_several_observers_get_every_event_in_their_order() -> None:
    one, other = Witness(), Witness()
    observers = Observers([one, other, LogObserver()])
    event = StageStopped("here", "held", "no answer")
    observers.observe(event)
    assert (one.seen, other.seen) == ([event], [event])


def test_an_event_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        StageStopped("here", "held", "no answer").why = "another"  # type: ignore[misc]


def test_figures_add_up_and_are_those_of_reports() -> None:
    numbers: list[str] = [each.name for each in fields(Figures)]
    one, two = (Figures(*[count] * len(numbers)) for count in (1, 2))
    assert one + one == two
    assert set(numbers) <= {each.name for each in fields(Report)}


def test_the_log_has_a_line_for_a_stage_that_stopped_and_none_for_a_chunk(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG, logger="semel"):
        LogObserver().observe(ChunkDelivered("pay", Minibatch(1, 0), "out", "0", 1, 1, 0.1))
        LogObserver().observe(StageStopped("here", "held", "no answer"))
    assert [each.getMessage() for each in caplog.records] == [
        "here: held (no answer); `semel parked ls` shows it"
    ]

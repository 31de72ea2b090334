"""A run that is asked to stop ends at the border of a window: nothing is in doubt because of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from semel.errors import Fenced, StopRequested
from semel.ledger import LedgerClient, OwnerRow, Owners
from semel.protocol import OnDoubt
from support.destinations import (
    Absorber,
    Couriers,
    Crash,
    Database,
    Destination,
    Logs,
    NumberedWire,
    Post,
    Register,
    after,
    lost,
)
from support.pipeline import GIVEN, World, reply_lost

EVENTS = "a1 b2 a3 c4 b5 a6 c7 d8"
DESTINATIONS: dict[str, Callable[[], Destination]] = {
    "opaque": Post,
    "opaque, side by side": Couriers,
    "repeatable": Absorber,
    "probing": Register,
    "transactional": Database,
    "sequenced": Logs,
}


@dataclass
class StoppingWire(NumberedWire):
    """Lets something happen just before the call with a number."""

    stop_before: int | None = None
    stop: Callable[[], object] = lambda: None

    def cross(self, what: str, act: Callable[[], Any]) -> Any:
        if self.crossed + 1 == self.stop_before:
            self.stop_before = None
            self.stop()
        return super().cross(what, act)


def ask(world: World) -> OwnerRow | None:
    """Ask the run to stop, as another process does: past the wire that is counted."""
    beside = LedgerClient(world.store.memory, world.name, world.clock)
    return Owners(beside).request_stop("ann")


def pipeline(kind: str, **settings: Any) -> tuple[World, StoppingWire]:
    wire = StoppingWire()
    world = World(GIVEN, wire=wire)
    world.add(DESTINATIONS[kind](), chunk_rows=2, **settings)
    world.start()
    wire.stop = lambda: ask(world)
    wire.forget()
    return world, wire


def run(world: World, batch: int, text: str = EVENTS) -> bool:
    """Deliver one minibatch, as a task does that is not tried again; whether it was completed."""
    try:
        world.minibatch(batch, text)
    except StopRequested:
        return False
    return True


def steps_of(kind: str) -> range:
    world, wire = pipeline(kind)
    assert run(world, 0)
    return range(1, wire.crossed + 1)


@pytest.mark.parametrize("kind", DESTINATIONS)
def test_a_stop_at_every_step_puts_nothing_in_doubt_and_the_next_run_delivers_the_rest(
    kind: str,
) -> None:
    stopped = 0
    for step in steps_of(kind):
        world, wire = pipeline(kind)
        wire.stop_before = step
        completed = run(world, 0)
        stopped += not completed
        assert world.parked() == [], step
        if completed:  # the request came too late for this minibatch, and holds for the next
            assert world.driver.beat()
            with pytest.raises(StopRequested):
                world.open(1)
        before = world.out.seen
        world.start()
        assert run(world, 0), step
        assert world.out.seen == EVENTS, (step, before)
        assert world.parked() == [], step
        assert run(world, 1, "e9 a10"), step
        assert world.out.seen == f"{EVENTS} e9 a10", step
    assert stopped


def test_an_opaque_partition_ends_after_the_window_in_which_it_was_asked_to_stop() -> None:
    world, _ = pipeline("opaque")
    world.out.plan(after(lambda: ask(world)))
    assert not run(world, 0)
    assert world.out.seen == "a1 b2"  # the window of the call that was running
    world.start()
    assert run(world, 0)
    assert (world.out.seen, world.parked()) == (EVENTS, [])


def test_killed_where_the_orderly_stop_ended_it_the_window_would_be_in_doubt() -> None:
    """What the request to stop spares: the same moment without it."""
    world, wire = pipeline("opaque")
    wire.crash_before = next(
        number for number, what in enumerate(recorded(), 1) if what.startswith("send b2")
    )
    with pytest.raises(Crash):
        run(world, 0)
    wire.forget()
    world.start()
    assert run(world, 0)
    assert world.parked()[:2] == ["a1 held", "b2 held"]


def recorded() -> list[str]:
    world, wire = pipeline("opaque")
    assert run(world, 0)
    return list(wire.log)


@pytest.mark.parametrize("kind", DESTINATIONS)
def test_a_crash_at_any_step_after_the_request_costs_no_more_than_any_crash(kind: str) -> None:
    for step in steps_of(kind):
        for later in steps_of(kind):
            world, wire = pipeline(kind)
            wire.stop_before, wire.crash_before = step, later
            with contextlib.suppress(Crash):
                run(world, 0)
            wire.forget()
            wire.stop_before = None
            world.start()
            assert run(world, 0), (step, later)
            names = world.out.seen.split()
            doubted = {each.split()[0] for each in world.parked()}
            assert len(names) == len(set(names)), (step, later)
            assert {*names, *doubted} == {*EVENTS.split()}, (step, later)
            assert sum("held" in each for each in world.parked()) <= 2, (step, later)


def test_what_failed_before_the_stop_is_parked_and_not_forgotten() -> None:
    world, _ = pipeline("opaque", on_doubt=OnDoubt.HOLD)

    def fails_while_asked(act: Callable[[], Any]) -> Any:
        ask(world)
        return lost(act)

    world.out.plan(fails_while_asked)
    assert not run(world, 0)
    assert world.parked() == ["a1 held"]
    world.start()
    assert run(world, 0)
    assert world.parked() == ["a1 held", "a3 waiting", "a6 waiting"]
    assert world.out.seen == "a1 b2 c4 b5 c7 d8"


def test_a_lost_reply_to_the_completing_commit_and_then_a_stop_leave_it_complete() -> None:
    world, _ = pipeline("opaque")
    opening = world.open(0)
    reports = world.task(opening, EVENTS)

    def completed_then_asked(act: Callable[[], Any]) -> Any:
        try:
            return reply_lost(act)
        finally:
            ask(world)

    world.store.script.append(completed_then_asked)
    world.driver.end(opening, reports)
    with pytest.raises(StopRequested):
        world.open(1)
    world.start()
    assert run(world, 0)
    assert run(world, 1, "e9")
    assert world.out.seen == f"{EVENTS} e9"


def test_a_request_before_the_first_minibatch_is_seen_with_the_heartbeat() -> None:
    world, _ = pipeline("opaque")
    assert ask(world) is not None
    opening = world.open(0)  # the row of the minibatch was not there to say it
    assert world.driver.beat()
    assert world.client.read_one(world.client.open_key) != opening.text
    with pytest.raises(StopRequested):
        world.task(opening, EVENTS)
    assert world.out.seen == ""


def test_a_run_that_ended_or_was_replaced_is_not_asked_to_stop() -> None:
    world, _ = pipeline("opaque")
    owners = Owners(world.client)
    assert owners.request_stop("ann", run=7) is None
    world.driver.beat(ended=True)
    assert owners.request_stop("ann") is None
    world.start()
    assert run(world, 0)


def test_a_zombie_is_fenced_and_not_asked_to_stop() -> None:
    world, _ = pipeline("opaque")
    first = world.open(0)
    world.start()
    world.open(0)
    ask(world)
    with pytest.raises(Fenced):
        world.task(first, EVENTS)
    assert world.out.seen == ""


def test_asking_twice_writes_once_and_keeps_who_asked_first() -> None:
    world, _ = pipeline("opaque")
    world.open(0)
    owners = Owners(world.client)
    asked = owners.request_stop("ann")
    text = world.client.read_one(world.client.open_key)
    again = owners.request_stop("bob")
    assert asked is not None
    assert again is not None
    assert again.stop == asked.stop
    assert again.stop is not None
    assert again.stop.by == "ann"
    assert world.client.read_one(world.client.open_key) == text


def test_parked_events_that_are_free_to_go_wait_for_the_next_run() -> None:
    world, _ = pipeline("opaque")
    world.out.plan(lost)
    assert run(world, 0, "a1 a2 b3")
    world.resolve("a1", "delivered")
    world.driver.ask_to_stop("ann")
    assert world.driver.drain() == 0
    world.start()
    assert world.driver.drain() == 1
    assert world.out.seen == "a1 b3 a2"

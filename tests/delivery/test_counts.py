"""What a report and `semel status` count: delivered, parked and dropped are different, also of
attempts before.
"""

from __future__ import annotations

from contextlib import closing

import pytest

from semel.delivery.parking.resend import Resending
from semel.ledger import Ledger
from semel.ledger.verbs.complete import Report
from semel.operate import read_status
from semel.protocol import OnDoubt, OnReject
from support.destinations import Crash, Database, Post, crash, fine, lost
from support.pipeline import KINDS, World, world_like, world_of

INPUT = "a1 a2 b3 b4 c5 c6"


def counts(report: Report) -> dict[str, int]:
    """Give the figures that are not nought."""
    names = (
        "delivered",
        "suppressed",
        "parked",
        "doubted",
        "dropped",
        "parked_before",
        "dropped_before",
    )
    return {name: found for name in names if (found := getattr(report, name))}


def again(world: World, text: str = INPUT) -> Report:
    """Deliver a minibatch, lose its completion, and let another attempt come for it."""
    opening = world.open(0)
    world.task(opening, text)
    [report] = world.task(opening, text)
    world.driver.end(opening, [report])
    return report


def replayed(world: World, text: str = INPUT) -> Report:
    """Complete a minibatch, and let Spark replay it with the next start."""
    world.minibatch(0, text)
    world.start()
    [report] = world.minibatch(0, text)
    return report


def test_what_an_attempt_before_parked_does_not_count_as_delivered() -> None:
    world = world_of(Post())
    world.out.plan(lost)
    report = again(world)
    assert world.parked() == ["a1 held", "a2 waiting"]
    assert counts(report) == {"suppressed": 4, "parked_before": 2}


@pytest.mark.parametrize("kind", KINDS)
def test_a_replay_of_a_complete_minibatch_tells_parked_from_delivered(kind: str) -> None:
    world = world_like(kind, on_reject=OnReject.BLOCK, chunk_rows=1)
    world.out.refuses.add("b3")
    report = replayed(world)
    assert world.parked() == ["b3 rejected", "b4 waiting"]
    assert counts(report) == {"suppressed": 4, "parked_before": 2}


@pytest.mark.parametrize("kind", KINDS)
def test_an_attempt_that_takes_over_tells_parked_from_delivered(kind: str) -> None:
    world = world_like(kind, on_reject=OnReject.BLOCK, chunk_rows=1, span_chunks=1)
    world.out.refuses.add("b3")
    found = counts(again(world))
    # The last span of a destination with keys is repeated, or asked for, and absorbed.
    found["suppressed"] += found.pop("delivered", 0)
    assert found == {"suppressed": 4, "parked_before": 2}


def test_what_policy_skip_dropped_is_neither_parked_nor_delivered() -> None:
    world = world_of(Post(), on_doubt=OnDoubt.SKIP)
    world.out.plan(lost)
    opening = world.open(0)
    [first] = world.task(opening, INPUT)
    assert counts(first) == {"delivered": 5, "dropped": 1}
    [second] = world.task(opening, INPUT)
    assert counts(second) == {"suppressed": 5, "dropped_before": 1}


def test_what_policy_resend_sent_again_is_delivered_and_not_parked() -> None:
    world = world_of(Post(), on_doubt=OnDoubt.RESEND, chunk_rows=3)
    world.out.plan(fine, lost)
    [report] = world.minibatch(0, INPUT)
    assert counts(report) == {"delivered": 6}


def test_what_a_crash_left_in_doubt_counts_as_parked_and_not_as_delivered() -> None:
    world = world_of(Post())
    opening = world.open(0)
    world.out.plan(fine, fine, crash)
    with pytest.raises(Crash):
        world.task(opening, INPUT)
    [report] = world.task(opening, INPUT)
    assert counts(report) == {"suppressed": 2, "delivered": 2, "parked": 2, "doubted": 1}


def test_what_the_row_of_a_destination_rejected_is_counted_once() -> None:
    world = world_of(Database(one_script=True), chunk_rows=6)
    world.out.refuses.add("b3")
    opening = world.open(0)
    world.wire.crash_before = world.wire.crossed + 3  # claim, transaction, then the parking
    with pytest.raises(Crash):
        world.task(opening, INPUT)
    [report] = world.task(opening, INPUT)
    assert counts(report) == {"suppressed": 5, "parked": 1}


def test_what_was_sent_again_since_counts_as_delivered() -> None:
    world = world_of(Post())
    world.out.plan(lost)
    world.minibatch(0, INPUT)
    assert world.parked() == ["a1 held", "a2 waiting"]
    world.resolve("a1", "resend")
    world.clock.sleep(60)  # nothing of the first call is under way any more
    world.start()
    driver = world.driver
    Resending(driver.client, driver.sinks[0], driver.process, driver.runtime).drain()
    [report] = world.minibatch(0, INPUT)
    assert world.parked() == ["a1 delivered", "a2 delivered"]
    assert counts(report) == {"suppressed": 6}


def told(world: World) -> dict[str, int | None]:
    """What `semel status` counts, where it is not nought."""
    names = ("delivered", "in_doubt", "rejected", "waiting", "skipped", "discarded")
    with closing(Ledger(world.store)) as ledger:
        [sink] = read_status(ledger, "pay", watch=False).to_json()["sinks"]
    return {name: sink[name] for name in names if sink[name] != 0}


@pytest.mark.parametrize("kind", KINDS)
def test_status_does_not_count_as_delivered_what_is_parked(kind: str) -> None:
    world = world_like(kind, on_reject=OnReject.BLOCK, chunk_rows=1, span_chunks=1)
    world.out.refuses.update({"a1", "b2"})
    world.minibatch(0, "a1 b2 a3 c4")
    assert told(world) == {"delivered": 1, "rejected": 2, "waiting": 1}
    world.out.refuses.clear()
    world.resolve("b2", "discarded")
    world.resolve("a1", "resend")
    world.driver.drain(waits=True)
    world.minibatch(1, "c5")  # a log takes what is parked before its own events
    assert world.parked() == ["a1 delivered", "b2 discarded", "a3 delivered"]
    assert told(world) == {"delivered": 4, "discarded": 1}

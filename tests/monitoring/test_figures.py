"""The counters agree with a witness outside, at every point where a process can die."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from semel.monitoring.pipeline_figures import PipelineFigures
from semel.protocol import OnDoubt
from support.destinations import Crash, Database, Destination, Post, lost
from support.pipeline import World, reply_lost

INPUT = ("a1 a2 b3 b4 c5 c6", "a7 b8 c9")


class Counted:
    """The figures of every start of one world, as Prometheus would add them up."""

    def __init__(self, destination: Destination, **settings: Any) -> None:
        self.starts: list[PipelineFigures] = []
        self.world = World(observer=self)
        self.world.add(destination, **settings)

    def start(self) -> None:
        self.starts.append(PipelineFigures("pay", ["out"], self.world.clock))
        driver = self.world.start()
        self.starts[-1].driver_commits = lambda: driver.client.used.figures

    def observe(self, event: object) -> None:
        self.starts[-1].observe(event)  # type: ignore[arg-type]

    def total(self, name: str) -> float:
        """The sum over all starts and all labels."""
        found = [
            each.value
            for start in self.starts
            for each in start.samples()
            if each.metric.name == name
        ]
        assert found, name
        return sum(each for each in found if isinstance(each, int | float))


def run(counted: Counted) -> None:
    """Deliver two micro-batches; start again where a process dies."""
    batch, starts = 0, 0
    while batch < len(INPUT):
        try:
            if starts == len(counted.starts):
                counted.start()
            counted.world.minibatch(batch, INPUT[batch])
        except Crash:
            starts = len(counted.starts)
            counted.world.wire.crash_before = counted.world.wire.crash_after = None
        else:
            batch += 1


def crossings(make: Callable[[], Counted]) -> int:
    """How many calls to ledger and destination a run without a fault makes."""
    counted = make()
    run(counted)
    return counted.world.wire.crossed


def database() -> Counted:
    return Counted(Database(), chunk_rows=2)


def post() -> Counted:
    return Counted(Post(), window=2)


@pytest.mark.parametrize("make", [database, post])
def test_delivered_over_all_starts_is_what_a_witness_saw_wherever_a_process_dies(
    make: Callable[[], Counted],
) -> None:
    calls = crossings(make)
    assert calls > 8
    missed = []
    for number in range(1, calls + 1):
        for when in ("crash_before", "crash_after"):
            counted = make()
            setattr(counted.world.wire, when, number)
            run(counted)
            arrived = {each.name for each in counted.world.out.effects}
            assert len(arrived) == len(counted.world.out.effects), "nothing arrived twice"
            set_aside = {each.split()[0] for each in counted.world.parked()}
            delivered = counted.total("semel_events_delivered_total")
            known = len(arrived - set_aside)
            died_in_complete = (
                when == "crash_after" and "sequences" in counted.world.wire.log[number - 1]
            )
            if died_in_complete:
                missed.append(known - delivered)
            else:
                assert delivered == known, (when, number)
            assert counted.total("semel_events_parked_total") == len(set_aside)
    # A process that dies right after the commit that completes a minibatch takes its count along.
    assert missed == [6, 3]


def test_what_an_earlier_attempt_delivered_is_counted_once_and_as_suppressed() -> None:
    counted = database()
    counted.start()
    opening = counted.world.open(0)
    counted.world.task(opening, INPUT[0])  # its report never reaches the driver
    counted.start()
    counted.world.minibatch(0, INPUT[0])
    assert counted.total("semel_events_delivered_total") == 6
    assert counted.total("semel_events_suppressed_total") == 6
    assert counted.total("semel_minibatches_total") == 1


def test_a_minibatch_that_is_only_counted_again_delivers_nothing_more() -> None:
    counted = database()
    counted.start()
    counted.world.minibatch(0, INPUT[0])
    counted.start()
    counted.world.minibatch(0, INPUT[0])
    assert [next(iter(each.samples())).value for each in counted.starts] == [6, 0]
    assert counted.total("semel_events_suppressed_total") == 6


def test_events_in_doubt_are_parked_and_delivered_only_once_somebody_resends_them() -> None:
    counted = Counted(Post(), window=1)
    counted.start()
    counted.world.out.plan(lost)
    counted.world.minibatch(0, "a1 b2 c3")
    assert counted.total("semel_events_delivered_total") == 2
    assert counted.total("semel_events_in_doubt_total") == 1
    counted.world.resolve("a1", "resend")
    counted.world.driver.drain(waits=True)
    assert counted.total("semel_events_delivered_total") == 3
    assert counted.total("semel_events_resent_total") == 1
    assert counted.total("semel_events_parked_total") == 1


def test_dropped_and_skipped_events_are_neither_delivered_nor_parked() -> None:
    counted = Counted(Post(), window=1, on_doubt=OnDoubt.SKIP)
    counted.start()
    counted.world.out.plan(lost)
    counted.world.minibatch(0, "a1 b2 c3")
    assert counted.total("semel_events_dropped_total") == 1
    assert counted.total("semel_events_delivered_total") == 2
    counted.start()
    opening = counted.world.open(0, "another checkpoint")
    counted.world.driver.end(opening, counted.world.task(opening, "a1 b2 c3 d4"))
    assert counted.total("semel_events_skipped_total") == 3
    assert counted.total("semel_events_delivered_total") == 3


def test_commits_of_driver_and_tasks_are_counted_with_what_the_ledger_did_not_answer() -> None:
    counted = Counted(Post(), window=2)
    counted.start()
    counted.world.minibatch(0, "a1 a2 b3")
    used = counted.world.driver.client.used.figures
    assert (used.commits, used.errors) == (3, 0), "register, open, complete"
    [seen] = [
        each.value
        for each in counted.starts[0].samples()
        if each.metric.name == "semel_ledger_commit_seconds" and each.labels[1] == "tasks"
    ]
    assert getattr(seen, "count", None) == 3, "claim with an intent, settle with an intent, settle"
    counted.world.store.script.append(reply_lost)
    counted.world.minibatch(1, "a4")
    assert counted.total("semel_ledger_errors_total") == 1


def test_the_open_minibatch_and_the_heartbeat_grow_old_until_they_are_written() -> None:
    counted = database()
    counted.start()
    opening = counted.world.open(0)
    counted.world.clock.move(40)
    assert counted.total("semel_minibatch_open_seconds") == 40
    assert counted.total("semel_heartbeat_age_seconds") == 40
    counted.world.driver.beat()
    assert counted.total("semel_heartbeat_age_seconds") == 0
    counted.world.driver.end(opening, counted.world.task(opening, "a1"))
    assert counted.total("semel_minibatch_open_seconds") == 0
    [seconds] = [
        each.value
        for each in counted.starts[0].samples()
        if each.metric.name == "semel_minibatch_seconds"
    ]
    assert getattr(seconds, "total", None) == 40
    assert dict(getattr(seconds, "buckets", ())) | {"30.0": 0, "60.0": 1, "+Inf": 1} == dict(
        getattr(seconds, "buckets", ())
    )

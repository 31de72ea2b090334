"""The counters agree with a witness outside, at every point where a process can die."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from semel.delivery import MinibatchCompleted
from semel.monitoring.pipeline_figures import PipelineFigures
from semel.protocol import OnDoubt
from support.destinations import (
    Absorber,
    Crash,
    Database,
    Destination,
    Logs,
    Post,
    Register,
    lost,
)
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


def logs() -> Counted:
    return Counted(Logs(), chunk_rows=2)


def absorber() -> Counted:
    return Counted(Absorber(), chunk_rows=2)


def register() -> Counted:
    return Counted(Register(), chunk_rows=2)


def compared(make: Callable[[], Counted]) -> tuple[list[str], list[float]]:
    """Kill a process before and after each call; return where the sum differs from the witness, and
    what is missing where the commit that completes a minibatch was the last act of a process.
    """
    wrong, missed = [], []
    for number in range(1, crossings(make) + 1):
        for when in ("crash_before", "crash_after"):
            counted = make()
            wire = counted.world.wire
            setattr(wire, when, number)
            run(counted)
            arrived = Counter(each.name for each in counted.world.out.effects)
            assert set(arrived.values()) == {1}, "nothing arrived twice"
            set_aside = {each.split()[0] for each in counted.world.parked()}
            known = len(arrived.keys() - set_aside)
            delivered = counted.total("semel_events_delivered_total")
            if when == "crash_after" and "sequences" in wire.log[number - 1]:
                missed.append(known - delivered)
            elif delivered != known:
                wrong.append(f"{when} {number}: {delivered:g} and not {known}")
            if counted.total("semel_events_parked_total") != len(set_aside):
                wrong.append(f"{when} {number}: parked")
    return wrong, missed


@pytest.mark.parametrize("make", [database, post, logs, absorber, register])
def test_delivered_over_all_starts_is_what_a_witness_saw_wherever_a_process_dies(
    make: Callable[[], Counted],
) -> None:
    assert crossings(make) > 8
    wrong, missed = compared(make)
    assert wrong == []
    # A process that dies right after the commit that completes a minibatch takes its count along.
    assert missed == [6, 3]


@pytest.mark.parametrize("planted", ["without suppressed", "counted again", "parked too"])
def test_a_counter_that_is_wrong_is_found(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = PipelineFigures._completed

    def wrong(self: PipelineFigures, event: MinibatchCompleted) -> None:
        figures = dict(event.figures)
        for sink, each in figures.items():
            if planted == "without suppressed":
                figures[sink] = replace(each, suppressed=0)
            elif planted == "parked too":
                figures[sink] = replace(each, delivered=each.delivered + each.parked)
        again = event.again and planted != "counted again"
        plain(self, replace(event, figures=figures, again=again))

    monkeypatch.setattr(PipelineFigures, "_completed", wrong)
    differences, missed = compared(post)
    assert differences or missed != [6, 3]


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

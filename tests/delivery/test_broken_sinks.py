"""A sink whose own code is at fault stops the query, instead of parking a stream."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from semel.errors import HeldInDoubt, SinkBroken
from semel.protocol import OnDoubt
from semel.sinks import Target
from support.destinations import Post, fine, lost
from support.pipeline import KINDS, World, world_like, world_of

SEVEN = " ".join(f"{chr(97 + at % 7)}{at}" for at in range(30))
"""30 events of 7 entities."""

MANY = " ".join(f"{chr(97 + at)}{at}" for at in range(26))


def misspelt(act: Callable[[], Any]) -> Any:
    return reqeusts.post("http://service/")  # type: ignore[name-defined] # noqa: F821


def misspelt_after(act: Callable[[], Any]) -> Any:
    act()
    return misspelt(act)


ERRORS = [
    NameError("name 'reqeusts' is not defined"),
    TypeError("unsupported operand"),
    AttributeError("'dict' object has no attribute 'vlaue'"),
    ImportError("cannot import name 'x'"),
    ModuleNotFoundError("No module named 'reqeusts'"),
    SyntaxError("invalid syntax"),
    UnboundLocalError("cannot access local variable"),
    NotImplementedError("later"),
    KeyError("amuont"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_programming_error_before_the_first_success_stops_the_query(error: Exception) -> None:
    def fails(act: Callable[[], Any]) -> Any:
        raise error

    world = world_of(Post())
    world.out.always = fails
    with pytest.raises(SinkBroken) as stopped:
        world.minibatch(0, SEVEN)
    said = str(stopped.value)
    assert "sink 'out', minibatch 1.0, partition 0: event 0 of 'a' failed with " in said
    assert f"{type(error).__name__}: {error}" in said
    assert len(world.out.calls) == 1, "what was tried is one event"
    assert world.parked() == ["a0 held"], "it may have had its effect"


def test_nothing_is_repeated_after_such_a_stop_and_each_start_tries_one_more() -> None:
    world = world_of(Post())
    world.out.always = misspelt_after
    for tried in range(1, 4):
        with pytest.raises(SinkBroken):
            world.minibatch(0, SEVEN)
        assert len(world.out.calls) == tried
        world.start()
    world.out.always = fine
    world.minibatch(0, SEVEN)
    names = world.out.seen.split()
    assert len(names) == len(set(names))
    for name in "a0", "b1", "c2":
        world.resolve(name, "delivered")
    world.driver.drain(waits=True)
    names = world.out.seen.split()
    assert sorted(names) == sorted(SEVEN.split())


def test_a_broken_sink_does_not_end_green_when_every_entity_waits() -> None:
    world = world_of(Post())
    world.out.always = misspelt
    for _ in range(3):
        with pytest.raises(SinkBroken):
            world.minibatch(0, "a1 a2 b3 b4")
        world.start()
    with pytest.raises(SinkBroken, match=r"semel resolve .*semel parked ls") as stopped:
        world.minibatch(0, "a1 a2 b3 b4")
    assert "NameError" in str(stopped.value)
    world.out.always = fine
    world.resolve("a1", "resend")
    world.resolve("b3", "resend")
    world.start()
    world.clock.move(1_000)
    world.minibatch(0, "a1 a2 b3 b4")
    world.driver.drain(waits=True)
    assert sorted(world.out.seen.split()) == ["a1", "a2", "b3", "b4"]


def test_after_its_first_success_such_an_error_is_about_the_event() -> None:
    world = world_of(Post())
    world.out.plan(fine, misspelt)
    world.minibatch(0, "a1 b2 c3")
    assert world.parked() == ["b2 held"]
    world.start()
    world.out.plan(misspelt)
    world.minibatch(1, "d4 e5")
    assert world.parked() == ["b2 held", "d4 held"]


def test_a_success_in_another_partition_counts_from_the_next_minibatch_on() -> None:
    world = world_of(Post())
    opening = world.open(0)
    reports = world.task(opening, "a1", partition="0")
    world.driver.end(opening, reports)
    world.start()
    opening = world.open(1)
    world.out.plan(misspelt)
    reports = world.task(opening, "b2 c3", partition="1")
    world.driver.end(opening, reports)
    assert world.parked() == ["b2 held"]


def test_a_success_of_an_attempt_before_counts() -> None:
    world = world_of(Post())
    opening = world.open(0)
    world.out.plan(fine)
    world.task(opening, "a1 b2")
    world.out.plan(misspelt)
    reports = world.task(opening, "a1 b2 c3 d4")
    world.driver.end(opening, reports)
    assert world.parked() == ["c3 held"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_destination_stops_at_its_first_programming_error(kind: str) -> None:
    world = world_like(kind, chunk_rows=1, span_chunks=1)
    world.out.always = misspelt
    began = world.clock.now
    with pytest.raises(SinkBroken, match="NameError: name 'reqeusts' is not defined"):
        world.minibatch(0, MANY)
    assert len(world.out.calls) == 1
    assert world.clock.now - began < 60, "patience does not help"
    world.start()
    world.out.always = fine
    world.minibatch(0, MANY)
    parked = {each.split()[0] for each in world.parked()}
    assert parked == ({"a0"} if kind.startswith("opaque") else set())
    assert sorted(world.out.seen.split()) == sorted(set(MANY.split()) - parked)


@pytest.mark.parametrize("kind", KINDS)
def test_a_session_that_cannot_be_opened_for_such_an_error_stops_the_query(kind: str) -> None:
    world = world_like(kind)
    [sink] = world.sinks

    class Misspelt(type(sink)):  # type: ignore[misc]
        def open(self, target: Target) -> Any:
            return Conection(target)  # type: ignore[name-defined] # noqa: F821

    object.__setattr__(sink, "__class__", Misspelt)
    with pytest.raises(SinkBroken, match="name 'Conection' is not defined"):
        world.minibatch(0, MANY)
    assert world.clock.slept == []
    assert world.out.effects == []


# -- tracebacks


def test_the_first_traceback_of_each_kind_is_logged_and_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def other(act: Callable[[], Any]) -> Any:
        raise OSError("no route")

    world = world_of(Post())
    world.out.plan(fine, misspelt, misspelt, other, other)
    with caplog.at_level(logging.WARNING, logger="semel"):
        world.minibatch(0, "a1 b2 c3 d4 e5 f6")
    logged = [each.getMessage() for each in caplog.records if "Traceback" in each.getMessage()]
    assert len(logged) == 2
    assert "in misspelt" in logged[0]
    assert "NameError: name 'reqeusts' is not defined" in logged[0]
    assert "OSError: no route" in logged[1]
    kept = {row.event: row.trace for _, row in world.parked_rows() if row.trace}
    assert sorted(kept) == [2, 4]
    assert "in misspelt" in str(kept[2])


def test_a_traceback_that_is_kept_is_cut() -> None:
    def deep(depth: int) -> None:
        if depth:
            deep(depth - 1)
        raise ValueError("x" * 100_000)

    world = world_of(Post())
    world.out.plan(lambda _: deep(50))
    world.minibatch(0, "a1 b2")
    [trace] = [row.trace for _, row in world.parked_rows() if row.trace]
    assert len(trace) <= 4_000
    assert "in deep" in trace


# -- ten in a row


def test_ten_in_a_row_are_counted_over_restarts() -> None:
    world = world_of(Post())
    world.out.always = lost
    with pytest.raises(HeldInDoubt, match="10 outcomes in a row"):
        world.minibatch(0, MANY)
    assert len(world.out.calls) == 10
    assert len(world.parked()) == 10, "also the tenth is parked: it was tried"
    for tried in range(11, 14):
        world.start()
        with pytest.raises(HeldInDoubt, match="outcomes in a row"):
            world.minibatch(0, MANY)
        assert len(world.out.calls) == tried
    world.start()
    world.out.always = fine
    world.minibatch(0, MANY)
    assert len(world.out.effects) == 26


def test_ten_in_a_row_are_counted_over_minibatches() -> None:
    world = world_of(Post())
    world.out.always = lost
    names = MANY.split()
    world.minibatch(0, " ".join(names[:4]))
    world.start()
    world.minibatch(1, " ".join(names[4:8]))
    world.start()
    with pytest.raises(HeldInDoubt, match="10 outcomes in a row"):
        world.minibatch(2, " ".join(names[8:]))
    assert len(world.out.calls) == 10


def test_what_a_person_resolved_does_not_count_any_more() -> None:
    world = world_of(Post())
    world.out.plan(*[lost] * 9)
    names = MANY.split()
    world.minibatch(0, " ".join(names[:9]))
    for name in names[:9]:
        world.resolve(name, "delivered")
    world.start()
    world.out.plan(lost, lost)
    world.minibatch(1, " ".join(names[9:12]))
    assert len(world.out.effects) == 12


@pytest.mark.parametrize("on_doubt", [OnDoubt.HOLD, OnDoubt.SKIP, OnDoubt.RESEND])
def test_an_answer_ends_the_row_also_over_a_restart(on_doubt: OnDoubt) -> None:
    world = world_of(Post(), on_doubt=on_doubt)
    opening = world.open(0)
    world.out.plan(*[lost] * 9, fine, *[lost] * 8)
    names = MANY.split()
    count = 9 if on_doubt is OnDoubt.RESEND else 18
    world.task(opening, " ".join(names[:count]))
    world.start()
    opening = world.open(0)
    world.out.script.clear()
    world.out.plan(lost)
    world.driver.end(opening, world.task(opening, MANY))


def test_one_call_for_many_events_counts_once() -> None:
    world = world_of(Post(), batches=True, chunk_rows=13)
    world.out.plan(lost)
    world.minibatch(0, MANY)
    assert len(world.parked()) == 13


def test_what_a_crash_left_in_doubt_is_not_counted() -> None:
    world = world_of(Post(), chunk_rows=13)
    world.out.plan(*[fine] * 13, lost)
    world.minibatch(0, MANY)
    assert len(world.parked()) == 1


def test_it_stops_again_while_everything_waits_behind_what_was_not_answered() -> None:
    world = world_of(Post())
    world.out.always = lost
    names = [f"{chr(97 + at % 10)}{at}" for at in range(20)]
    with pytest.raises(HeldInDoubt, match="10 outcomes in a row"):
        world.minibatch(0, " ".join(names))
    world.start()
    with pytest.raises(HeldInDoubt, match="outcomes in a row"):
        world.minibatch(0, " ".join(names))


def test_a_ledger_of_an_older_version_counts_as_one_that_delivered() -> None:
    world: World = world_of(Post())
    world.minibatch(0, "a1")
    [(_, text)] = world.store.memory.scan("sequences", "")
    assert "never" not in text
    assert "unanswered" not in text, "the clean path writes what it wrote"

"""A sink that overwrites a place: one chunk per partition, written from its first event, always."""

from __future__ import annotations

import pytest

from semel.errors import Fenced, NotDelivered
from support.destinations import Crash, FolderModel, after, before, crash, crash_after
from support.pipeline import World, crash_everywhere, events, world_of

INPUT = "a1 b2 c3 d4 e5"
NAMES = INPUT.split()


def folder() -> World:
    return world_of(FolderModel(), chunk_rows=2)


@pytest.mark.rows("A5", "A6", "A7")
def test_the_place_stands_in_the_ledger_before_anything_is_written_and_goes_with_complete() -> None:
    world = folder()
    opening = world.open(0)
    places: list[str | None] = []
    world.out.plan(after(lambda: places.append(world.streams()[0].location)))
    reports = world.task(opening, INPUT)
    assert places == ["1.0/part-0"]
    assert world.out.places == {"1.0/part-0": NAMES}
    assert world.streams()[0].location == "1.0/part-0"
    world.driver.end(opening, reports)
    [row] = world.streams()
    assert row.location is None
    assert row.state.value == "complete"
    assert world.opened().complete


@pytest.mark.rows("A9", "A12")
def test_a_resumed_partition_is_written_from_its_first_event_to_the_recorded_place() -> None:
    world = folder()
    opening = world.open(0)
    world.out.plan(before(lambda: None), crash_after)
    with pytest.raises(Crash):
        world.task(opening, INPUT)
    assert world.out.places == {}
    world.out.calls.clear()
    world.driver.end(opening, world.task(opening, INPUT))
    assert [name for call in world.out.calls for name in call] == [*NAMES, "(finish)"]
    assert world.out.places == {"1.0/part-0": NAMES}


@pytest.mark.rows("A12")
def test_partial_output_at_the_place_is_replaced() -> None:
    world = folder()
    world.out.places["1.0/part-0"] = ["a1", "garbage"]
    world.minibatch(0, INPUT)
    assert world.out.places == {"1.0/part-0": NAMES}


@pytest.mark.rows("A6", "A12")
def test_a_crash_at_any_call_ends_as_one_success_would() -> None:
    def deliver(world: World) -> None:
        opening = world.open(0)
        world.driver.end(opening, world.task(opening, INPUT))

    for what, world in crash_everywhere(folder, deliver):
        world.start()
        deliver(world)
        world.minibatch(1, "a6")
        assert world.out.places == {"1.0/part-0": NAMES, "1.1/part-0": ["a6"]}, what


def test_each_partition_of_each_minibatch_has_a_place_of_its_own() -> None:
    world = folder()
    opening = world.open(0)
    reports = world.task(opening, "a1 b2", partition="0")
    reports += world.task(opening, "c3", partition="1", spark_task=1)
    world.driver.end(opening, reports)
    assert world.out.places == {"1.0/part-0": ["a1", "b2"], "1.0/part-1": ["c3"]}


@pytest.mark.rows("S19")
def test_a_zombie_does_not_put_its_part_over_the_later_attempts() -> None:
    world = folder()
    opening = world.open(0)
    reports = []

    def replaced() -> None:
        reports.extend(world.task(opening, INPUT, number=20))
        world.out.places["1.0/part-0"].append("(by the later one)")

    world.out.plan(after(replaced))
    with pytest.raises(Fenced):
        world.task(opening, INPUT, number=10)
    assert world.out.places["1.0/part-0"] == [*NAMES, "(by the later one)"]
    assert world.out.opened == world.out.closed
    world.driver.end(opening, reports)


def test_what_cannot_be_written_fails_the_task_and_the_next_attempt_writes_it_anew() -> None:
    world = folder()
    opening = world.open(0)

    def full(act: object) -> None:
        raise OSError("no space left")

    world.out.plan(full)
    with pytest.raises(NotDelivered, match="no space left"):
        world.task(opening, INPUT)
    world.driver.end(opening, world.task(opening, INPUT))
    assert world.out.places == {"1.0/part-0": NAMES}


@pytest.mark.rows("A10")
def test_a_complete_partition_is_counted_and_not_written_again() -> None:
    world = folder()
    world.minibatch(0, INPUT)
    world.out.calls.clear()
    world.start()
    world.minibatch(0, INPUT)
    assert world.out.calls == []


def test_borders_of_batches_do_not_change_what_is_written() -> None:
    world = folder()
    opening = world.open(0)
    batches = [events("a1"), events("b2 c3 d4"), events("e5")]
    world.driver.end(opening, world.task(opening, batches))
    assert world.out.places == {"1.0/part-0": NAMES}


def test_without_finishing_nothing_stands_at_the_place() -> None:
    world = folder()
    world.out.plan(*[before(lambda: None)] * 3, crash)
    with pytest.raises(Crash):
        world.minibatch(0, INPUT)
    assert world.out.places == {}

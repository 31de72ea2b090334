"""After a lost checkpoint Spark has to go on where the ledger stands; the driver sees to it."""

from __future__ import annotations

import json
import re

import pytest

from semel.delivery import Driver
from semel.delivery.driver import PRUNE_EVERY
from semel.errors import ConfigurationError, Diverged
from semel.events import IdSet
from semel.ledger.verbs.complete import PositionMark
from semel.ledger.verbs.open_checks import next_offset
from support.destinations import Crash, Database, Post, crash, crash_after, fine, lost
from support.pipeline import COUNTER, GIVEN, POSITION, World, once, world_of


def delivered() -> World:
    world = world_of(Database(), POSITION)
    world.minibatch(0, "a1 b2")
    world.minibatch(1, "a3 b4")
    world.start()
    return world


def test_a_gap_stops_the_driver_before_anything_is_written() -> None:
    world = delivered()
    before = world.opened()
    with pytest.raises(Diverged) as caught:
        world.driver.begin("q2", 0, {"t/0": 8, "t/1": 3})
    text = str(caught.value)
    assert "t/0 begins at offset 8 and the ledger continues at 5 (3 offsets are skipped)" in text
    assert "accept_gap=True" in text
    [found] = re.findall(r"'startingOffsets', '(.*?)'\)", text)
    assert json.loads(found) == {"t": {"0": 5, "1": -2}}
    assert world.opened() == before


def test_a_partition_that_is_not_read_any_more_is_named() -> None:
    world = delivered()
    with pytest.raises(Diverged, match="t/0, which the ledger continues at 5, is not read"):
        world.driver.begin("q2", 0, {"u/0": 0})


@pytest.mark.parametrize("starts", [{"t/0": 8}, {"u/0": 0}])
def test_a_gap_that_is_accepted_stops_nobody(starts: dict[str, int]) -> None:
    world = delivered()
    world.driver.accept_gap = True
    opening = world.driver.begin("q2", 0, starts)
    world.driver.end(opening, world.task(opening, "a8 b9"))
    assert once(world.out.seen) == "a1 b2 a3 b4 a8 b9"


@pytest.mark.parametrize("start", [0, 3, 5])
def test_rows_that_were_filtered_out_are_no_gap_when_the_start_is_known(start: int) -> None:
    world = delivered()
    opening = world.driver.begin("q2", 0, {"t/0": start})
    world.driver.end(opening, [])  # all of it was filtered out
    world.minibatch(1, "a9 b10", "q2")
    assert once(world.out.seen) == "a1 b2 a3 b4 a9 b10"


def test_where_the_start_is_not_known_the_task_still_compares() -> None:
    world = delivered()
    opening = world.driver.begin("q2", 0)
    with pytest.raises(Diverged, match="accept_gap=True"):
        world.task(opening, "a9")


def test_another_topic_under_the_same_name_is_still_found() -> None:
    world = delivered()
    opening = world.driver.begin("q2", 0, {"t/0": 0})
    with pytest.raises(Diverged, match="another source, start with a new pipeline name"):
        world.task(opening, "a3 b4=9")


def test_a_judged_generation_is_not_looked_at_for_gaps() -> None:
    from semel.ledger.verbs.divergence import judge_minibatch
    from semel.protocol import Judgement

    world = delivered()
    judge_minibatch(world.client, world.opened().minibatch, Judgement.AS_REPLAYED, "ann", "looked")
    opening = world.driver.begin("q", 1, {"t/0": 9})
    world.driver.end(opening, world.task(opening, "a9"))
    assert world.out.seen.endswith("a9")


def test_a_partition_without_a_watermark_is_left_to_its_task() -> None:
    world = world_of(Post(), POSITION)
    opening = world.open(0)
    world.out.plan(fine, crash_after)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2 c3 d4")
    world.start()
    opening = world.driver.begin("q2", 0, {"t/0": 9})
    with pytest.raises(Diverged, match=r"continues at offset 9, but the ledger is at 2"):
        world.task(opening, "a9")


@pytest.mark.parametrize("start", [0, 1, 2])
def test_what_spark_filtered_out_is_no_gap_where_a_partition_is_left_to_its_task(
    start: int,
) -> None:
    world = world_of(Post(), POSITION)
    opening = world.open(0)
    world.out.plan(fine, crash_after)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2 c3 d4")
    world.start()
    opening = world.driver.begin("q2", 0, {"t/0": start})
    world.driver.end(opening, world.task(opening, "a9"))  # the query filters what is before it now
    assert world.out.seen.split()[-1] == "a9"
    assert world.opened().minibatch.generation == 2


def test_a_partition_that_is_silent_until_a_later_start_is_compared_with_where_spark_began() -> (
    None
):
    world = world_of(Post(), POSITION)
    opening = world.open(0)
    world.out.plan(fine, crash_after)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2 c3 d4")
    world.start()
    starts = {"t/0": 1}
    world.driver.end(world.driver.begin("q2", 0, starts), [])
    opening = world.driver.begin("q2", 1, starts)
    world.driver.end(opening, world.task(opening, "a9"))
    assert world.out.seen.split()[-1] == "a9"


def test_a_first_event_in_doubt_tells_where_the_ledger_stands() -> None:
    world = world_of(Post(), POSITION)
    opening = world.open(0)
    world.out.plan(crash)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2")
    world.start()
    opening = world.driver.begin("q2", 0)
    with pytest.raises(Diverged, match="the ledger is at 1"):
        world.task(opening, "c3")


@pytest.mark.parametrize(
    ("mark", "expected"),
    [
        (PositionMark(), None),
        (PositionMark(upto=4), 5),
        (PositionMark(upto=4, above=IdSet.of([5, 6, 8])), 7),
        (PositionMark(above=IdSet.of([3, 4, 8])), 5),
        (PositionMark(upto=(4, 1), digest="d"), 5),
        (PositionMark(upto=(4, 1)), 4),
        (PositionMark(upto=(4, 1), digest="d", above=IdSet.of([(5, 0)])), 5),
    ],
)
def test_the_next_offset_is_the_first_that_is_not_handled_as_a_whole(
    mark: PositionMark, expected: int | None
) -> None:
    assert next_offset(mark) == expected


# -- how many partitions


def driver(world: World, number: int, partitions: int | None, default: int | None) -> Driver:
    return Driver(
        world.client,
        world.sinks,
        world.identity,
        world.process("d"),
        f"n-{number}",
        world.runtime,
        partitions,
        default_partitions=default,
    )


@pytest.mark.parametrize("identity", [GIVEN, COUNTER])
def test_the_recorded_number_of_partitions_is_taken_where_none_is_asked_for(
    identity: object,
) -> None:
    world = World(identity)  # type: ignore[arg-type]
    world.add(Post())
    first = driver(world, 1, None, 6)
    first.start()
    assert first.partitions == 6
    later = driver(world, 2, None, 2)
    later.start()
    assert later.partitions == 6
    driver(world, 3, 6, 2).start()
    with pytest.raises(ConfigurationError, match=r"has 6 partitions.*`semel rescale pay 3`"):
        driver(world, 4, 3, 2).start()


def test_positions_have_no_partitions() -> None:
    world = World(POSITION)
    world.add(Post())
    made = driver(world, 1, None, 6)
    made.start()
    assert made.partitions is None


@pytest.mark.parametrize(("remember_s", "kept"), [(60.0, []), (1e6, ["a1 delivered"])])
def test_the_driver_remembers_as_long_as_it_is_told(remember_s: float, kept: list[str]) -> None:
    world = world_of(Post(), GIVEN)
    world.driver.remember_s = remember_s
    world.out.plan(lost)
    world.minibatch(0, "a1")
    world.resolve("a1", "delivered")
    world.clock.move(3_600.0)
    for batch in range(1, PRUNE_EVERY + 1):
        world.minibatch(batch, f"b{batch + 1}")
    assert world.parked() == kept

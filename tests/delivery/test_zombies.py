"""Two attempts at once are normal: the later one wins, the earlier one is fenced and fails."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from semel.errors import Fenced
from semel.events import Attempt
from semel.protocol import OnDoubt
from support.destinations import Careless, Crash, Database, Logs, after, before, crash_after, fine
from support.pipeline import (
    COUNTER,
    EXACT,
    GIVEN,
    INCREASING,
    KINDS,
    ORDERED_POSITION,
    World,
    once,
    world_like,
    world_of,
)

INPUT = "a1 b2 c3 d4"
SLOW_S = 60.0


def overtaken(world: World, when: Callable[[Callable[[], object]], Any], second: int = 20) -> None:
    """An attempt stands still at its first call, and another one delivers everything meanwhile."""
    opening = world.open(0)
    reports: list[Any] = []

    def replace() -> None:
        world.clock.move(SLOW_S)
        reports.extend(world.task(opening, INPUT, number=second))

    world.out.plan(when(replace))
    with pytest.raises(Fenced):
        world.task(opening, INPUT, number=10)
    world.driver.end(opening, reports)


# -- progress rows


@pytest.mark.rows("S19")
@pytest.mark.parametrize("kind", ["transactional", "transactional script", "sequenced"])
@pytest.mark.parametrize("when", [after, before])
def test_a_zombie_is_refused_by_the_destination_and_nothing_is_there_twice(
    kind: str, when: Any
) -> None:
    world = world_like(kind, chunk_rows=1)
    overtaken(world, when)
    assert once(world.out.seen) == INPUT


def test_without_its_attempt_in_the_row_the_zombie_would_repeat() -> None:
    world = world_of(Database(progress=Careless()), chunk_rows=1)
    opening = world.open(0)
    world.out.plan(after(lambda: world.task(opening, INPUT, number=20)))
    with suppress(Fenced):  # it may learn so when it has done it
        world.task(opening, INPUT, number=10)
    assert once(world.out.seen).startswith("a1 a1 b2")


def test_every_transaction_moves_the_row_under_its_own_attempt_one_chunk_at_a_time() -> None:
    world = world_of(Database(), chunk_rows=2)
    world.minibatch(0, "a1 b2 c3 d4 e5", number=7)
    world.minibatch(1, "a6 b7 c8", number=9)
    history = world.out.history
    assert [row.done for row in history] == [2, 4, 5, 2, 3]
    assert [row.osn for row in history] == [2, 4, 5, 7, 8]
    assert [row.attempt for row in history] == [Attempt(1, 7)] * 3 + [Attempt(1, 9)] * 2
    assert [row.sort_key for row in history] == [
        [2, "b"],
        [4, "d"],
        [5, "e"],
        [7, "b"],
        [8, "c"],
    ]
    assert len({row.digest for row in history}) == 5


@pytest.mark.rows("S10", "A19")
@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("identity", [GIVEN, INCREASING, ORDERED_POSITION, COUNTER])
@pytest.mark.parametrize("calls", [1, 2, 3])
def test_a_half_done_partition_resumes_at_the_exact_record(
    kind: str, identity: Any, calls: int
) -> None:
    world = world_like(kind, identity, chunk_rows=1, span_chunks=2)
    opening = world.open(0)
    world.out.plan(*[before(lambda: None)] * (calls - 1), crash_after)
    with pytest.raises(Crash):
        world.task(opening, INPUT)
    assert len(world.out.effects) == calls
    [report] = world.task(opening, INPUT)
    world.driver.end(opening, [report])
    assert world.out.seen == INPUT
    assert report.count == 4
    assert world.out.numbers == [1, 2, 3, 4]


# -- a fenced attempt


@pytest.mark.rows("S19")
@pytest.mark.parametrize("kind", KINDS)
def test_a_fenced_attempt_closes_its_session_and_its_task_fails(kind: str) -> None:
    world = world_like(kind, chunk_rows=1, on_doubt=OnDoubt.HOLD)
    overtaken(world, before)
    assert world.out.opened == world.out.closed
    seen = world.out.seen.split()
    assert len(seen) == len(set(seen))
    if kind in EXACT:
        assert once(world.out.seen) == INPUT


@pytest.mark.parametrize("kind", KINDS)
def test_an_earlier_attempt_that_comes_late_is_refused_before_it_sends_anything(kind: str) -> None:
    world = world_like(kind)
    opening = world.open(0)
    reports = world.task(opening, INPUT, number=20)
    sent = len(world.out.calls)
    with pytest.raises(Fenced, match=r"1\.20"):
        world.task(opening, INPUT, number=10)
    assert len(world.out.calls) == sent
    world.driver.end(opening, reports)


# -- two drivers, one name


@pytest.mark.rows("S19")
@pytest.mark.parametrize("kind", KINDS)
def test_the_tasks_of_an_older_run_are_fenced_by_the_first_open_of_the_next(kind: str) -> None:
    world = world_like(kind)
    old, opening = world.driver, world.open(0)
    world.start()
    fresh = world.open(0)
    with pytest.raises(Fenced, match="the driver opened another minibatch"):
        world.task(opening, INPUT, number=99)
    assert world.out.seen == ""
    with pytest.raises(Fenced, match=r"was replaced by\s+run 2"):
        old.begin("q", 1)
    world.driver.end(fresh, world.task(fresh, INPUT))
    assert world.out.seen == INPUT


@pytest.mark.rows("S19")
@pytest.mark.parametrize("kind", KINDS)
def test_an_older_run_cannot_complete_what_the_next_one_has_opened(kind: str) -> None:
    world = world_like(kind)
    old, opening = world.driver, world.open(0)
    reports = world.task(opening, INPUT)
    world.start()
    fresh = world.open(0)
    with pytest.raises(Fenced):
        old.end(opening, reports)
    world.driver.end(fresh, world.task(fresh, INPUT))
    assert once(world.out.seen) == INPUT
    with pytest.raises(Fenced):
        old.end(opening, reports)


@pytest.mark.rows("S19")
@pytest.mark.parametrize("kind", ["transactional", "sequenced", "probing", "repeatable"])
def test_a_task_of_an_older_run_that_is_in_the_middle_stops_and_nothing_is_there_twice(
    kind: str,
) -> None:
    world = world_like(kind, chunk_rows=1, span_chunks=4)
    opening = world.open(0)

    def next_run() -> None:
        world.clock.move(SLOW_S)
        world.start()
        world.minibatch(0, INPUT)

    world.out.plan(before(next_run))
    with pytest.raises(Fenced):
        world.task(opening, INPUT)
    assert once(world.out.seen) == INPUT
    assert world.opened().complete


def test_registering_alone_fences_nobody() -> None:
    world = world_like("transactional")
    opening, old = world.open(0), world.driver
    world.start()
    old.end(opening, world.task(opening, INPUT))
    assert world.out.seen == INPUT


# -- the last opener wins


def by_opener() -> World:
    return world_of(Logs(whole_chunks=True), chunk_rows=1, last_opener_wins=True)


def test_where_the_last_opener_wins_a_new_partition_is_fenced_first_too() -> None:
    world = by_opener()
    world.wire.forget()
    world.minibatch(0, INPUT)
    log = world.wire.log
    assert log.index("take the epoch") < log.index("send a1")
    assert log.index("commit streams") < log.index("take the epoch")


def test_fenced_by_the_destination_while_the_ledger_names_it_an_attempt_opens_again_and_asks() -> (
    None
):
    world = by_opener()
    opening = world.open(0)
    [sink] = world.sinks
    reached: list[str] = []

    def zombie_wakes() -> None:
        """An attempt that the ledger knows nothing of any more takes the epoch."""
        from semel.sinks import Target

        reached.append(world.out.seen)
        sink.open(Target("pay", "out", opening.row.minibatch, "0", Attempt(1, 1)))

    world.out.plan(before(zombie_wakes), fine, before(zombie_wakes))
    [report] = world.task(opening, INPUT, number=5)
    world.driver.end(opening, [report])
    assert reached == ["a1", "a1 b2"]
    assert world.out.seen == INPUT
    assert world.out.opened == world.out.closed + 2  # the zombie's sessions stay open


@pytest.mark.rows("S19")
@pytest.mark.parametrize("when", [after, before])
def test_of_two_openers_the_one_that_the_ledger_names_delivers_the_rest(when: Any) -> None:
    world = by_opener()
    overtaken(world, when)
    assert once(world.out.seen) == INPUT


def test_without_asking_first_a_late_append_of_an_older_attempt_would_be_repeated() -> None:
    """Two attempts: the first one's append lands after the second has claimed, before it asks."""
    world = by_opener()
    opening = world.open(0)
    world.out.plan(crash_after)
    with pytest.raises(Crash):
        world.task(opening, INPUT, number=1)
    world.wire.forget()
    world.driver.end(opening, world.task(opening, INPUT, number=2))
    first = next(each for each in world.wire.log if each != "commit streams")
    assert first == "take the epoch"  # before it looks at how far the log is
    assert world.out.seen == INPUT


@pytest.mark.parametrize(
    ("policy", "seen", "parked"),
    [
        # The limit of `skip`: its entity goes on at once, and the call in flight may come after.
        (OnDoubt.SKIP, "a2 a3 a1", ["a1 skipped"]),
        (OnDoubt.HOLD, "a1", ["a1 held", "a2 waiting", "a3 waiting"]),
    ],
)
def test_an_event_that_is_skipped_may_arrive_after_later_ones_of_its_entity_and_a_held_one_not(
    policy: OnDoubt, seen: str, parked: list[str]
) -> None:
    world = world_like("opaque", on_doubt=policy)
    opening = world.open(0)
    reports: list[Any] = []
    world.out.plan(after(lambda: reports.extend(world.task(opening, "a1 a2 a3", number=20))))
    with pytest.raises(Fenced):
        world.task(opening, "a1 a2 a3", number=10)
    world.driver.end(opening, reports)
    assert (world.out.seen, world.parked()) == (seen, parked)

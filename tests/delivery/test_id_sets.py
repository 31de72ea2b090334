"""The sets of ids decide what a seen partition skips: exactly what stands in them, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import pytest

from semel.events import EntityIds
from semel.ledger.rows import SpanRow
from semel.ledger.store.commit import Put
from support.destinations import Absorber, Crash, Post, crash, fine
from support.pipeline import GIVEN, World, world_of

INSIDE = ("a1", "b2", "a3", "b4")
BEYOND = ("a5", "c6")
ALL = " ".join((*INSIDE, *BEYOND))
SUBSETS = [names for size in range(5) for names in combinations(INSIDE, size)]


def ids_of(names: tuple[str, ...]) -> EntityIds:
    found: dict[str, list[int]] = {}
    for name in names:
        found.setdefault(name[0], []).append(int(name[1:]))
    return EntityIds.of(found)


def rewrite(world: World, change: Callable[[SpanRow], SpanRow]) -> None:
    """Put another row in the place of the partition's first span."""
    at, text = next(world.store.memory.scan("events", ""))
    world.store.memory.commit([], [Put(at, change(SpanRow.load(text)).dump())])


def sent(world: World) -> list[str]:
    return [name for call in world.out.calls for name in call]


@pytest.mark.rows("S10")
@pytest.mark.parametrize("names", SUBSETS, ids=" ".join)
def test_of_a_half_done_span_exactly_the_ids_of_its_set_are_skipped(names: tuple[str, ...]) -> None:
    world = world_of(Absorber(), chunk_rows=4, span_chunks=1)
    opening = world.open(0)
    world.out.plan(crash)
    with pytest.raises(Crash):
        world.task(opening, ALL)
    rewrite(world, lambda span: replace(span, handled=ids_of(names)))
    world.out.calls.clear()
    [report] = world.task(opening, ALL)
    assert sent(world) == [name for name in ALL.split() if name not in names]
    assert report.delivered == len(ALL.split()) - len(names)


@pytest.mark.rows("S10")
@pytest.mark.parametrize("names", SUBSETS, ids=" ".join)
def test_after_a_lost_checkpoint_exactly_the_ids_of_its_sets_are_skipped(
    names: tuple[str, ...],
) -> None:
    world = world_of(Post(), GIVEN, window=4)
    opening = world.open(0)
    world.out.plan(*[fine] * 4)
    world.task(opening, " ".join(INSIDE))  # its report never reaches the driver
    rewrite(world, lambda span: replace(span, ids=(ids_of(names),)))
    world.out.calls.clear()
    world.start()
    [report] = world.minibatch(0, ALL, "q2")
    assert sent(world) == [name for name in ALL.split() if name not in names]
    assert report.skipped == len(names)


@pytest.mark.rows("S10")
@pytest.mark.parametrize("calls", range(1, 5))
def test_a_half_done_partition_resumes_at_the_exact_record_by_the_ids_it_wrote(calls: int) -> None:
    world = world_of(Post(), GIVEN, window=1)
    opening = world.open(0)
    world.out.plan(*[fine] * calls, crash)
    with pytest.raises(Crash):
        world.task(opening, ALL)
    in_flight = ALL.split()[calls]
    world.out.calls.clear()
    world.start()
    [report] = world.minibatch(0, ALL, "q2")
    waiting = [name for name in ALL.split()[calls + 1 :] if name[0] == in_flight[0]]
    rest = [name for name in ALL.split()[calls + 1 :] if name not in waiting]
    assert sent(world) == rest
    assert report.skipped == calls + 1  # what was delivered, and the one in doubt
    assert world.parked() == [f"{in_flight} held", *(f"{name} waiting" for name in waiting)]

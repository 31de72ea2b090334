"""A sink that absorbs repeats in another way than before: an open partition is not repeated so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from semel.errors import ConfigurationError
from semel.ledger.keys import STREAMS_TABLE
from semel.ledger.rows import PartitionRow
from semel.ledger.store.commit import Put
from support.destinations import Absorber, Crash, crash_after
from support.pipeline import GIVEN, World, once, world_like, world_of

REFUSED = "let the minibatch complete, then change it"


def half_delivered(*, keyed_by_event: bool) -> World:
    """a1 and b2 arrived, and their attempt crashed before it settled them."""
    world = world_of(Absorber(), GIVEN, chunk_rows=2, keyed_by_event=keyed_by_event)
    world.out.plan(crash_after)
    with pytest.raises(Crash):
        world.minibatch(0, "a1 b2 a3")
    return world


def change(world: World, **settings: Any) -> None:
    """The next release has other settings."""
    world.sinks[0] = replace(world.sinks[0], **settings)
    world.start()


def streams(world: World) -> list[tuple[Any, PartitionRow]]:
    rows = world.store.memory.scan(STREAMS_TABLE, "")
    return [(at, PartitionRow.load(text)) for at, text in rows]


@pytest.mark.parametrize("query", ["q", "another"], ids=["the same checkpoint", "a lost one"])
@pytest.mark.parametrize("keyed", [True, False], ids=["by event", "by chunk"])
def test_an_open_partition_is_not_repeated_under_keys_of_another_kind(
    keyed: bool, query: str
) -> None:
    world = half_delivered(keyed_by_event=keyed)
    assert world.out.seen == "a1 b2"
    change(world, keyed_by_event=not keyed)
    with pytest.raises(ConfigurationError, match=f"keyed_by_event={keyed}.*{REFUSED}"):
        world.minibatch(0, "a1 b2 a3", query)
    assert world.out.seen == "a1 b2"
    change(world, keyed_by_event=keyed)
    world.minibatch(0, "a1 b2 a3", query)
    held = [each for each in world.parked() if not each.endswith(("waiting", "held"))]
    assert held == []
    assert once(world.out.seen).startswith("a1 b2")
    change(world, keyed_by_event=not keyed)
    world.minibatch(1, "c4", query)
    assert world.out.seen.split().count("a1") == world.out.seen.split().count("b2") == 1
    assert world.out.seen.split()[-1] == "c4"


def test_a_partition_that_was_sent_is_not_written_to_a_place_and_the_other_way_round() -> None:
    world = half_delivered(keyed_by_event=True)
    [(at, row)] = streams(world)
    assert row.absorbed_by == "event"
    placed = replace(row, absorbed_by="place")
    world.store.memory.commit([], [Put(at, placed.dump())])
    world.start()
    with pytest.raises(ConfigurationError, match=f"overwritten.*{REFUSED}"):
        world.minibatch(0, "a1 b2 a3")
    assert world.out.seen == "a1 b2"


def test_a_partition_of_an_older_version_is_continued_without_a_comparison() -> None:
    world = half_delivered(keyed_by_event=True)
    [(at, row)] = streams(world)
    world.store.memory.commit([], [Put(at, replace(row, absorbed_by=None).dump())])
    world.start()
    world.minibatch(0, "a1 b2 a3")
    assert once(world.out.seen) == "a1 b2 a3"


@pytest.mark.parametrize("kind", ["opaque", "probing", "transactional", "sequenced"])
def test_other_destinations_record_nothing_of_it(kind: str) -> None:
    world = world_like(kind)
    world.minibatch(0, "a1 b2")
    assert [row.absorbed_by for _, row in streams(world)] == [None]


@pytest.mark.parametrize("keyed", [True, False], ids=["by event", "by chunk"])
def test_a_resend_that_may_have_arrived_is_not_repeated_under_a_key_of_another_kind(
    keyed: bool,
) -> None:
    world = world_of(Absorber(), GIVEN, chunk_rows=1, keyed_by_event=keyed)
    world.out.refuses.add("a1")
    world.minibatch(0, "a1 b2")
    world.out.refuses.clear()
    world.resolve("a1", "resend")
    world.out.plan(crash_after)
    with pytest.raises(Crash):
        world.driver.drain(waits=True)
    change(world, keyed_by_event=not keyed)
    world.clock.move(100.0)
    world.driver.drain(waits=True)
    assert world.parked() == ["a1 held"]
    assert once(world.out.seen) == "a1 b2"

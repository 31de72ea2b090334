"""How entities are spread is part of a pipeline: `rescale` changes it, and nothing else."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import semel
from semel.errors import ConfigurationError
from semel.events import Identity, bucket_name
from semel.events.routing import Routing, places
from semel.ledger.verbs.rescale import rescale_pipeline
from support.destinations import Database
from support.pipeline import COUNTER, INCREASING, World

RANGE = semel.by_range(["c", "e"])
TABLE = semel.by_directory({"a": 0, "b": 1, "c": 1, "d": 0, "e": 1})


def made(identity: Identity, routing: Routing | None, partitions: int | None = None) -> World:
    world = World(identity)
    world.add(Database())
    routed(world, routing, partitions)
    return world


def routed(world: World, routing: Routing | None, partitions: int | None = None) -> None:
    """Start it with a routing."""
    world.routing = None if routing is None else routing.describe()
    world.partitions = partitions or (None if routing is None else routing.partitions)
    world.start()


def deliver(world: World, batch: int, text: str, routing: Routing | None, query: str = "q") -> None:
    """A minibatch whose entities are spread over partitions, each in a task of its own."""
    opening = world.open(batch, query)
    count, names = world.partitions or 1, text.split()
    found = places(pa.array([name[0] for name in names]), count, routing).tolist()
    reports = []
    for number in range(count):
        own = [name for name, place in zip(names, found, strict=True) if place == number]
        partition = bucket_name(number, count)
        if own:
            reports += world.task(opening, " ".join(own), partition=partition, spark_task=number)
    world.driver.end(opening, reports)


@pytest.mark.rows("S14")
@pytest.mark.parametrize("complete", [True, False], ids=["complete", "pending"])
@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (None, RANGE, "spreads entities by hash, and range, at 'c', 'e' was requested"),
        (RANGE, None, "spreads entities by range, at 'c', 'e', and hash was requested"),
        (RANGE, semel.by_range(["c", "d"]), "and range, at 'c', 'd' was requested"),
        (RANGE, semel.by_directory({"a": 2}), "and directory, a table was requested"),
        (TABLE, semel.by_directory({"a": 1}), "and directory, a table was requested"),
        (semel.by_directory(len, partitions=3), semel.by_directory(ord, partitions=3), "ord"),
    ],
)
def test_another_routing_is_refused_by_name(
    before: Routing | None, after: Routing | None, told: str, *, complete: bool
) -> None:
    world = made(INCREASING, before, 3 if before is None else None)
    opening = world.open(0)
    if complete:
        world.driver.end(opening, [])
    with pytest.raises(ConfigurationError, match="pipeline 'pay' spreads entities") as caught:
        routed(world, after, 3 if after is None else None)
    assert told in str(caught.value)
    assert "semel rescale" in str(caught.value)


def test_a_table_may_name_further_entities() -> None:
    world = made(INCREASING, TABLE)
    deliver(world, 0, "a1 b2", TABLE)
    more = semel.by_directory({"a": 0, "b": 1, "c": 1, "d": 0, "e": 1, "f": 1})
    routed(world, more)
    deliver(world, 1, "f3 a4", more)
    assert sorted(world.out.seen.split()) == ["a1", "a4", "b2", "f3"]
    with pytest.raises(ConfigurationError, match="spreads entities"):
        routed(world, TABLE)


def test_a_pipeline_of_0_1_has_no_routing_and_goes_on_by_hash() -> None:
    world = made(INCREASING, None, 2)
    deliver(world, 0, "a1 b2", None)
    assert all("routing" not in text for _, text in world.store.memory.scan("pipelines", ""))
    routed(world, None, 2)


@pytest.mark.rows("S14")
@pytest.mark.parametrize("identity", [INCREASING, COUNTER], ids=["increasing", "counter"])
def test_after_rescaling_to_another_routing_every_entity_goes_on_where_it_was(
    identity: Identity,
) -> None:
    world = made(identity, None, 2)
    deliver(world, 0, "a1 b2 c3 d4 e5", None)
    ways: list[tuple[Routing | None, int]] = [(RANGE, 3), (TABLE, 2), (None, 4)]
    ids = iter(range(6, 100))
    for batch, (routing, count) in enumerate(ways, 1):
        rescale_pipeline(world.client, count, routing)
        rescale_pipeline(world.client, count, routing)  # may be repeated
        routed(world, routing, count)
        deliver(world, batch, " ".join(f"{each}{next(ids)}" for each in "abcde"), routing)
    seen: dict[str, list[Any]] = {}
    for effect in world.out.effects:
        seen.setdefault(effect.entity, []).append(effect.event)
    if identity is COUNTER:
        assert set(map(tuple, seen.values())) == {(1, 2, 3, 4)}
    if identity is INCREASING:
        came = sorted(world.out.effects, key=lambda effect: int(effect.name[1:]))
        everything = " ".join(effect.name for effect in came)
        deliver(world, 0, everything + " a99", None, query="another")
        assert sorted(world.out.seen.split()) == sorted([*everything.split(), "a99"])


def test_rescaling_to_the_same_number_in_another_way_says_what_to_do() -> None:
    world = made(INCREASING, None, 3)
    deliver(world, 0, "a1", None)
    with pytest.raises(ConfigurationError, match="Rescale it to another number first, then to 3"):
        rescale_pipeline(world.client, 3, RANGE)

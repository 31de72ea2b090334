"""The number of partitions changes while a run is silent, there and back, and after the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from semel.errors import ConfigurationError, Fenced, HeldInDoubt
from semel.events import Identity, bucket, bucket_name
from semel.ledger.verbs.divergence import judge_minibatch
from semel.ledger.verbs.pruning import REMEMBER_S, Pruning
from semel.ledger.verbs.rescale import rescale_pipeline
from semel.protocol import Judgement
from support.destinations import Crash, Database, crash
from support.pipeline import COUNTER, GIVEN, INCREASING, World, once


def made(identity: Identity) -> World:
    """A pipeline of one partition."""
    world = World(identity, partition="0of1", partitions=1)
    world.add(Database())
    world.start()
    return world


@pytest.mark.parametrize("identity", [COUNTER, GIVEN], ids=["counter", "given"])
@pytest.mark.parametrize("registered", [False, True])
def test_a_run_that_was_silent_while_it_was_rescaled_cannot_go_on_with_the_old_partitions(
    identity: Identity, registered: bool
) -> None:
    world = made(identity)
    world.minibatch(0, "a1 a2")
    if registered:
        world.start()
    rescale_pipeline(world.client, 2)
    with pytest.raises(ConfigurationError, match="rescaled to 2 partitions, and this run has 1"):
        world.minibatch(1, "a3 a4")
    assert world.out.seen == "a1 a2"


def test_rescaling_a_finished_batch_says_what_it_is() -> None:
    world = made(GIVEN)
    opening = world.open(0, "batch")
    world.driver.end(opening, world.task(opening, "a1"))
    world.driver.finish(opening)
    with pytest.raises(ConfigurationError, match="a finished batch"):
        rescale_pipeline(world.client, 2)


def from_two_to_one(world: World) -> None:
    """The pipeline goes on with one bucket."""
    rescale_pipeline(world.client, 1)
    world.partition, world.partitions = "0of1", 1
    world.start()


def of_two() -> World:
    world = World(GIVEN, partition="0of2", partitions=2)
    world.add(Database())
    world.start()
    return world


def test_what_is_forgotten_after_a_rescaling_is_not_taken_for_new() -> None:
    world = of_two()
    world.minibatch(0, "a1")
    world.minibatch(1, "b2")
    from_two_to_one(world)
    world.minibatch(2, "a3 b4")
    world.clock.move(2 * REMEMBER_S)
    Pruning(world.client).run(["out"])
    world.minibatch(3, "a5 b6")
    world.start()
    with pytest.raises(HeldInDoubt, match="older than the ids that are remembered"):
        world.minibatch(0, "a1 b2 a3 b4 a5 b6 a7", "q2")
    assert world.out.seen == "a1 b2 a3 b4 a5 b6"


def test_what_was_forgotten_before_a_rescaling_is_not_taken_for_new() -> None:
    world = of_two()
    world.minibatch(0, "a1 b2")
    world.clock.move(2 * REMEMBER_S)
    Pruning(world.client).run(["out"])
    world.minibatch(1, "a3 b4")
    from_two_to_one(world)
    world.minibatch(2, "a5 b6")
    world.start()
    with pytest.raises(HeldInDoubt, match="older than the ids that are remembered"):
        world.minibatch(0, "a1 b2 a3 b4 a5 b6 a7", "q2")
    assert world.out.seen == "a1 b2 a3 b4 a5 b6"


MANY = 6_600
"""So many ids of one bucket, with gaps in between, are packed."""


def deliver(world: World, batch: int, names: list[str], query: str = "q") -> None:
    """A minibatch whose entities are spread over the buckets, each in a task of its own."""
    opening = world.open(batch, query)
    buckets = world.partitions or 1
    of_entity = dict(zip("abcdef", bucket(pa.array(list("abcdef")), buckets).tolist(), strict=True))
    reports = []
    for number in range(buckets):
        text = " ".join(name for name in names if of_entity[name[0]] == number)
        place = bucket_name(number, buckets)
        reports += world.task(opening, text, partition=place, spark_task=number)
    world.driver.end(opening, reports)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3)])
def test_sets_that_are_packed_go_to_the_buckets_of_their_entities(before: int, after: int) -> None:
    world = World(GIVEN, partitions=before)
    world.add(Database())
    world.start()
    names = [f"{'abcdef'[number % 6]}{number // 6 * 2}" for number in range(MANY * before)]
    deliver(world, 0, names)
    assert all('"packed"' in text for _, text in world.store.memory.scan("journal", ""))
    rescale_pipeline(world.client, after)
    world.partitions = after
    world.start()
    deliver(world, 0, [*names, "a9999"], "q2")
    assert once(world.out.seen) == once(" ".join([*names, "a9999"]))


def test_what_is_remembered_over_a_rescaling_is_forgotten_in_the_end() -> None:
    world = of_two()
    for batch in range(5):
        world.minibatch(batch, f"a{batch} b{batch}")
    from_two_to_one(world)
    world.minibatch(5, "a5")
    world.clock.move(3 * REMEMBER_S)
    Pruning(world.client).run(["out"])
    assert world.store.size("journal")[0] == 1  # the mark


@pytest.mark.parametrize("identity", [GIVEN, INCREASING], ids=["given", "increasing"])
def test_a_minibatch_judged_after_a_rescaling_there_and_back_forgets_nothing_else(
    identity: Identity,
) -> None:
    world = made(identity)
    world.minibatch(0, "c0 a1 b2")
    world.minibatch(1, "a3 b4")  # complete, and the driver dies before Spark commits the batch
    rescale_pipeline(world.client, 2)
    rescale_pipeline(world.client, 1)
    judge_minibatch(world.client, world.opened().minibatch, Judgement.AS_REPLAYED, "ann", "looked")
    world.start()
    world.minibatch(1, "a3 b4 a5")
    world.start()
    world.minibatch(0, "c0 a1 b2 a3 b4 a5 b6", "q2")
    assert once(world.out.seen) == "c0 a1 b2 a3 a3 b4 b4 a5 b6"


def test_counted_ids_go_on_where_they_stood_when_a_minibatch_is_judged_after_a_rescaling() -> None:
    world = made(COUNTER)
    world.minibatch(0, "a1 a2")
    world.minibatch(1, "a3")
    rescale_pipeline(world.client, 2)
    rescale_pipeline(world.client, 1)
    judge_minibatch(world.client, world.opened().minibatch, Judgement.AS_REPLAYED, "ann", "looked")
    world.start()
    world.minibatch(1, "a3=9 a4")
    assert [effect.event for effect in world.out.effects] == [1, 2, 3, 3, 4]


def there_and_back(world: World) -> None:
    rescale_pipeline(world.client, 2)
    rescale_pipeline(world.client, 1)
    world.start()


@pytest.mark.parametrize("identity", [GIVEN, INCREASING, COUNTER], ids=["given", "rising", "count"])
def test_an_older_checkpoint_and_then_a_rescaling_there_and_back_replays_what_is_complete(
    identity: Identity,
) -> None:
    world = made(identity)
    world.minibatch(0, "a1 b2")
    world.minibatch(1, "a3 b4")
    world.minibatch(2, "a5 b6")
    world.start()
    world.minibatch(1, "a3 b4")  # of a copy of the checkpoint that is one batch older
    there_and_back(world)
    for _ in range(2):  # at every start
        world.start()
        world.minibatch(2, "a5 b6")
    world.minibatch(3, "a7 b8")
    assert world.out.seen == "a1 b2 a3 b4 a5 b6 a7 b8"
    if identity is COUNTER:
        assert [each.event for each in world.out.effects][-2:] == [4, 4]


@pytest.mark.parametrize("identity", [GIVEN, INCREASING], ids=["given", "rising"])
def test_a_rescaling_there_and_back_and_then_an_older_checkpoint_replays_what_is_complete(
    identity: Identity,
) -> None:
    world = made(identity)
    world.minibatch(0, "a1 b2")
    world.start()
    world.minibatch(0, "a1 b2 a3", "q2")  # the checkpoint was lost: a1 and b2 are skipped
    world.minibatch(1, "b4", "q2")
    there_and_back(world)
    world.minibatch(0, "a1 b2 a3", "q2")
    world.minibatch(1, "b4", "q2")
    world.minibatch(2, "a5", "q2")
    assert world.out.seen == "a1 b2 a3 b4 a5"


def test_a_rescaling_waits_for_the_newest_minibatch_also_where_an_older_one_was_run_again() -> None:
    world = made(COUNTER)
    world.minibatch(0, "a1 b2")
    opening = world.open(1)
    world.out.plan(crash)
    with pytest.raises(Crash):
        world.task(opening, "a3 b4")
    world.start()
    world.minibatch(0, "a1 b2")  # of a copy of the checkpoint that is one batch older
    with pytest.raises(ConfigurationError, match=r"the minibatch after 1\.0 is not complete"):
        rescale_pipeline(world.client, 2)


def test_two_rescalings_at_once_do_not_mix() -> None:
    world = made(GIVEN)
    world.minibatch(0, "a1 b2")

    def other(act: Callable[[], Any]) -> Any:
        world.store.script.clear()
        rescale_pipeline(world.client, 3)
        return act()

    world.store.script.append(other)
    with pytest.raises(Fenced, match="ran while it was rescaled"):
        rescale_pipeline(world.client, 2)
    world.partitions = 3
    world.start()
    deliver(world, 0, ["a1", "b2", "a3"], "q2")
    assert once(world.out.seen) == "a1 b2 a3"

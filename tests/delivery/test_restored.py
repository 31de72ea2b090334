"""An older copy of the checkpoint is restored: Spark may plan its batches again, and they grow."""

from __future__ import annotations

import pyarrow as pa
import pytest

from semel.errors import Diverged
from semel.events import Identity
from semel.ledger.verbs.divergence import judge_minibatch
from semel.protocol import Judgement
from support.destinations import Crash, crash, crash_after, fine
from support.pipeline import (
    COUNTER,
    GIVEN,
    INCREASING,
    POSITION,
    World,
    events,
    once,
    world_like,
)

ALL = "a1 b2 a3 b4 a5 b6"
SURVIVING: dict[str, Identity] = {"given": GIVEN, "increasing": INCREASING, "position": POSITION}


def half_done(kind: str, identity: Identity) -> World:
    """The first minibatch is complete; a3 and b4 of the second were sent when it crashed."""
    world = world_like(kind, identity, chunk_rows=1, span_chunks=1)
    world.minibatch(0, "a1 b2")
    opening = world.open(1)
    world.out.plan(fine, crash_after)
    with pytest.raises(Crash):
        world.task(opening, "a3 b4 a5 b6")
    world.start()
    return world


def as_recorded(world: World, batch: int, text: str) -> None:
    """The batch diverges, and a person says that what was delivered stands."""
    world.start()
    opening = world.open(batch)
    with pytest.raises(Diverged, match="as-recorded"):
        world.driver.end(opening, world.task(opening, text))
    judge_minibatch(
        world.client, world.opened().minibatch, Judgement.AS_RECORDED, "ann", "restored"
    )
    world.start()


@pytest.mark.parametrize("kind", ["repeatable", "probing", "transactional", "sequenced"])
@pytest.mark.parametrize("identity", SURVIVING)
def test_a_batch_that_grows_while_the_next_is_half_delivered_repeats_nothing(
    kind: str, identity: str
) -> None:
    world = half_done(kind, SURVIVING[identity])
    world.minibatch(0, ALL)
    world.minibatch(1, "a7 b8")
    assert world.out.seen == f"{ALL} a7 b8"


@pytest.mark.parametrize("kind", ["opaque", "repeatable by chunk"])
def test_what_was_in_flight_of_the_next_is_held(kind: str) -> None:
    world = half_done(kind, POSITION)
    world.minibatch(0, ALL)
    assert once(world.out.seen) == ALL
    assert world.parked() == ["b4 held"]


def test_counted_ids_are_only_counted_again() -> None:
    world = half_done("transactional", COUNTER)
    world.minibatch(0, "a1 b2")
    world.minibatch(1, "a3 b4 a5 b6")
    assert world.out.seen == ALL


def test_a_batch_from_before_the_generation_begins_another_one() -> None:
    world = world_like("opaque", POSITION)
    world.minibatch(0, "a1")
    world.minibatch(1, "b2")
    world.minibatch(2, "a3")
    opening = world.open(3)
    world.task(opening, "b4")
    world.start()
    world.minibatch(2, "a3")  # one batch back: the fourth is closed, another generation begins
    world.start()
    world.minibatch(1, "b2 a3 b4")  # and one more
    world.minibatch(2, "a5")
    assert once(world.out.seen) == "a1 b2 a3 b4 a5"


@pytest.mark.parametrize("identity", ["given", "position"])
def test_as_recorded_of_a_complete_batch_that_grew_loses_nothing(identity: str) -> None:
    world = world_like("transactional", SURVIVING[identity])
    world.minibatch(0, "a1 b2")
    world.minibatch(1, "a3 b4")
    as_recorded(world, 0, "a1 b2 a3 b4 a5")
    world.minibatch(0, "a1 b2 a3 b4 a5")
    world.minibatch(1, "b6")
    world.minibatch(2, "a7")
    assert once(world.out.seen) == "a1 b2 a3 b4 a5 b6 a7"


def test_as_recorded_of_a_complete_batch_that_shrank_repeats_nothing() -> None:
    world = world_like("transactional", GIVEN)
    world.minibatch(0, "a1 b2")
    world.minibatch(1, "a3 b4 a5")
    as_recorded(world, 1, "a3 b4")
    world.minibatch(1, "a3 b4")
    world.minibatch(2, "a5 b6")
    assert once(world.out.seen) == "a1 b2 a3 b4 a5 b6"


@pytest.mark.parametrize("kind", ["opaque", "probing", "transactional", "sequenced"])
def test_a_batch_that_grew_and_is_left_half_delivered_for_the_right_copy_repeats_nothing(
    kind: str,
) -> None:
    world = world_like(kind, POSITION, chunk_rows=1, span_chunks=1)
    world.minibatch(0, "a1 b2")
    world.start()
    opening = world.open(0)  # of an older copy: Spark plans it again, and it has grown
    world.out.plan(fine, crash)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2 a3 b4")
    world.start()
    world.minibatch(1, "a3 b4 a5")  # the right copy is back
    world.minibatch(2, "b6")
    held = [each.split()[0] for each in world.parked()]
    assert once(" ".join([world.out.seen, *held])) == "a1 b2 a3 b4 a5 b6"


@pytest.mark.parametrize("kind", ["transactional", "opaque"])
def test_a_batch_before_the_last_that_grew_and_is_left_half_delivered_repeats_nothing(
    kind: str,
) -> None:
    world = world_like(kind, POSITION, chunk_rows=1)
    world.minibatch(0, "a1 b2")
    world.driver.end(world.open(1), [])
    world.start()
    opening = world.open(0)  # of a copy that is one batch older
    world.out.plan(fine, crash)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2 a3 b4")
    world.start()
    world.minibatch(2, "a3 b4 a5")  # the right copy is back
    world.minibatch(3, "b6")
    held = [each.split()[0] for each in world.parked()]
    assert once(" ".join([world.out.seen, *held])) == "a1 b2 a3 b4 a5 b6"


def of_the_second_partition(text: str) -> list[pa.RecordBatch]:
    batch = events(text)
    field = batch.schema.field("partition")
    return [batch.set_column(1, field, pa.array([1] * len(batch), field.type))]


@pytest.mark.parametrize("kind", ["opaque", "repeatable", "probing", "transactional", "sequenced"])
def test_a_source_partition_that_only_the_next_batch_had_is_not_repeated_by_this_one(
    kind: str,
) -> None:
    """Spark plans the batch again, and reads in it what came with the next one before."""
    world = world_like(kind, POSITION)
    world.minibatch(0, "a1 b2")
    opening = world.open(1)
    reports = world.task(opening, "a3")
    second = of_the_second_partition("c1 c2")
    reports += world.task(opening, second, partition="t/1", spark_task=1)
    world.driver.end(opening, reports)
    world.start()
    opening = world.open(0)
    world.task(opening, "a1 b2")
    with pytest.raises(Diverged, match="as-recorded"):
        world.task(opening, second, partition="t/1", spark_task=1)
    judge_minibatch(
        world.client, world.opened().minibatch, Judgement.AS_RECORDED, "ann", "restored"
    )
    world.start()
    opening = world.open(0)
    reports = world.task(opening, "a1 b2 a3 a4")
    more = of_the_second_partition("c1 c2 c3")
    reports += world.task(opening, more, partition="t/1", spark_task=1)
    world.driver.end(opening, reports)
    assert world.out.seen == "a1 b2 a3 c1 c2 a4 c3"

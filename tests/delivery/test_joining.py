"""A sink that is added gets the minibatch it joins at, also one that the others have complete."""

from __future__ import annotations

import pytest

from delivery.test_batch_jobs import run
from delivery.test_conclude import Shelf
from semel.errors import ConfigurationError, Diverged
from semel.events import Identity
from semel.ledger import Ledger
from semel.ledger.verbs.divergence import judge_minibatch
from semel.protocol import Judgement
from support.destinations import Crash, Database, Post, crash_after, fine
from support.pipeline import (
    COUNTER,
    GIVEN,
    INCREASING,
    POSITION,
    World,
    crash_everywhere,
    once,
    world_like,
    world_of,
)
from support.pipeline import KINDS as EVERY

IDENTITIES: dict[str, Identity] = {
    "given": GIVEN,
    "increasing": INCREASING,
    "counter": COUNTER,
    "position": POSITION,
}
KINDS = ["opaque", "repeatable", "probing", "transactional", "sequenced"]


def new(world: World) -> str:
    return str(world.destinations["new"].seen)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("identity", IDENTITIES)
def test_a_sink_that_joins_while_a_complete_minibatch_is_replayed_gets_it(
    identity: str, kind: str
) -> None:
    world = world_like(kind, IDENTITIES[identity])
    world.minibatch(0, "a1 b2")
    world.minibatch(1, "a3 b4")  # complete, and Spark does not come to its own commit
    world.add(Database(), "new")
    world.start()
    world.minibatch(1, "a3 b4")
    world.minibatch(2, "a5")
    assert (world.out.seen, new(world)) == ("a1 b2 a3 b4 a5", "a3 b4 a5")


SURVIVE = ["given", "increasing", "position"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("identity", SURVIVE)
def test_it_gets_a_complete_minibatch_in_which_nothing_was_new_to_the_others(
    identity: str, kind: str
) -> None:
    world = world_like(kind, IDENTITIES[identity])
    world.minibatch(0, "a1 b2")
    world.start()
    world.minibatch(0, "a1 b2", query="after a lost checkpoint")
    world.add(Database(), "new")
    for _ in range(2):  # Spark does not come to its own commit
        world.start()
        world.minibatch(0, "a1 b2", query="after a lost checkpoint")
    world.minibatch(1, "a3", query="after a lost checkpoint")
    assert (world.out.seen, new(world)) == ("a1 b2 a3", "a1 b2 a3")


def test_a_complete_minibatch_without_events_still_has_none_for_sinks_that_were_there() -> None:
    world = world_of(Database(), GIVEN)
    world.add(Database(), "new")
    world.start()
    world.minibatch(0, "a1")
    world.minibatch(1, "")
    world.start()
    with pytest.raises(Diverged, match="it was complete without partition"):
        world.minibatch(1, "a2")
    assert (world.out.seen, new(world)) == ("a1", "a1")


@pytest.mark.parametrize("identity", IDENTITIES)
def test_a_crash_while_it_gets_it_loses_and_repeats_nothing(identity: str) -> None:
    world = world_of(Database(), IDENTITIES[identity])
    world.minibatch(0, "a1 b2")
    world.add(Database(), "new", chunk_rows=1)
    world.start()
    opening = world.open(0)
    world.destinations["new"].plan(crash_after)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2")
    for _ in range(2):  # a run that dies before its tasks, and one that goes through
        world.start()
        opening = world.open(0)
    world.driver.end(opening, world.task(opening, "a1 b2"))
    world.minibatch(1, "a3")
    assert (world.out.seen, new(world)) == ("a1 b2 a3", "a1 b2 a3")


@pytest.mark.parametrize("kind", ["repeatable", "probing", "transactional", "sequenced"])
@pytest.mark.parametrize("identity", ["given", "counter"])
def test_a_crash_at_any_call_while_it_joins_loses_and_repeats_nothing(
    identity: str, kind: str
) -> None:
    def joins(world: World) -> None:
        world.start()
        world.minibatch(0, "a1 b2")

    def begun() -> World:
        world = world_of(Database(), IDENTITIES[identity])
        world.minibatch(0, "a1 b2")
        made, settings = EVERY[kind]()
        world.add(made, "new", chunk_rows=1, **settings)
        return world

    for what, world in crash_everywhere(begun, joins):
        joins(world)
        world.minibatch(1, "a3")
        assert (world.out.seen, new(world)) == ("a1 b2 a3", "a1 b2 a3"), what


@pytest.mark.parametrize("identity", IDENTITIES)
def test_a_sink_that_was_left_out_and_comes_back_to_a_replay_gets_it(identity: str) -> None:
    world = world_of(Database(), IDENTITIES[identity])
    world.add(Database(), "new")
    both = list(world.sinks)
    world.start()
    world.minibatch(0, "a1 b2")
    world.sinks = both[:1]
    world.start()
    world.minibatch(1, "a3 b4")
    world.sinks = both
    world.start()
    world.minibatch(1, "a3 b4")
    assert (world.out.seen, new(world)) == ("a1 b2 a3 b4", "a1 b2 a3 b4")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("identity", IDENTITIES)
def test_a_sink_that_was_added_with_the_next_minibatch_gets_nothing_of_the_one_before(
    identity: str, kind: str
) -> None:
    """An older copy of the checkpoint is back. It would get them after later ones, numbered and
    remembered as if those had never come.
    """
    world = world_of(Post(), IDENTITIES[identity])
    world.minibatch(0, "a1 b2")
    destination, own = EVERY[kind]()
    world.add(destination, "new", **own)
    world.start()
    world.minibatch(1, "a3 b4")
    world.start()
    world.minibatch(0, "a1 b2")
    world.minibatch(1, "a3 b4")
    world.minibatch(2, "a5")
    assert (world.out.seen, new(world)) == ("a1 b2 a3 b4 a5", "a3 b4 a5")


@pytest.mark.parametrize("identity", ["given", "increasing", "counter"])
def test_counted_and_remembered_ids_are_those_of_the_other_sink(identity: str) -> None:
    world = world_of(Database(), IDENTITIES[identity])
    world.minibatch(0, "a1 b2")
    world.minibatch(1, "a3 b4")
    world.add(Database(), "new")
    world.start()
    world.minibatch(1, "a3 b4")
    world.minibatch(2, "a5 b6")
    names = [
        [(each.entity, each.event) for each in destination.effects][-4:]
        for destination in world.destinations.values()
    ]
    assert names[0] == names[1]


@pytest.mark.parametrize("identity", IDENTITIES)
def test_it_joins_a_batch_job_between_its_complete_and_its_permanent_row(identity: str) -> None:
    world = world_of(Database(), IDENTITIES[identity])
    opening = world.open(0, "batch")
    world.driver.end(opening, world.task(opening, "a1 b2 a3"))
    world.add(Shelf(), "new", chunk_rows=2)
    for _ in range(2):
        run(world, "a1 b2 a3")
    kept = world.driver.finished()
    assert kept is not None
    assert kept["new"] == kept["out"]
    assert world.destinations["new"].readers_see() == ["a1", "b2", "a3"]


@pytest.mark.parametrize("identity", ["given", "increasing", "counter"])
def test_a_sink_that_had_part_in_a_complete_minibatch_may_not_get_more_of_it(
    identity: str,
) -> None:
    world = World(IDENTITIES[identity])
    world.add(Database())
    world.add(Database(), "other")
    world.start()
    opening = world.open(0)
    world.driver.end(opening, world.task(opening, "a1", partition="0"))
    world.add(Database(), "new")
    world.start()
    opening = world.open(0)
    with pytest.raises(Diverged, match="it was complete without partition 1"):
        world.task(opening, "b2", partition="1", spark_task=1)
    assert [each.seen for each in world.destinations.values()] == ["a1", "a1", ""]


@pytest.mark.parametrize("identity", ["given", "increasing", "counter"])
def test_a_minibatch_that_was_complete_without_events_stays_empty_also_for_it(
    identity: str,
) -> None:
    world = world_of(Database(), IDENTITIES[identity])
    world.driver.end(world.open(0), [])
    world.add(Database(), "new")
    world.start()
    opening = world.open(0)
    with pytest.raises(Diverged, match="it was complete without partition 0"):
        world.task(opening, "a1")
    assert (world.out.seen, new(world)) == ("", "")


@pytest.mark.parametrize("identity", IDENTITIES)
def test_spark_does_not_go_on_past_what_it_has_only_a_part_of(identity: str) -> None:
    world = world_of(Database(), IDENTITIES[identity])
    world.minibatch(0, "a1 b2")
    world.add(Post(), "new")
    world.start()
    opening = world.open(0)  # of an older copy of the checkpoint
    world.destinations["new"].plan(fine, crash_after)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2 ")
    for _ in range(2):
        world.start()
        with pytest.raises(Diverged, match=r"sink 'new' has only a part of minibatch 1\.0"):
            world.open(1)  # the newer copy is back
    every = list(world.sinks)
    world.sinks = every[:1]
    world.start()
    with pytest.raises(ConfigurationError, match="sink 'new' was removed, but its partition"):
        world.open(1)
    world.sinks = every
    world.start()
    world.minibatch(0, "a1 b2")
    world.minibatch(1, "a3")
    assert (world.out.seen, once(new(world))) == ("a1 b2 a3", "a1 b2 a3")
    assert world.parked("new") == ["b2 held"]


@pytest.mark.parametrize("identity", IDENTITIES)
def test_spark_does_not_go_on_past_a_minibatch_after_the_one_it_joined_at(identity: str) -> None:
    """An older copy of the checkpoint, and then the newer one again."""
    world = world_of(Post(), IDENTITIES[identity])
    world.minibatch(0, "a1 b2")
    world.minibatch(1, "a3 b4")
    world.add(Database(), "new")
    world.start()
    world.minibatch(0, "a1 b2")
    world.start()
    with pytest.raises(Diverged, match=r"sink 'new' was added at minibatch 1\.0"):
        world.minibatch(2, "a5")
    world.minibatch(1, "a3 b4")
    world.minibatch(2, "a5")
    assert (world.out.seen, new(world)) == ("a1 b2 a3 b4 a5", "a1 b2 a3 b4 a5")


def test_a_sink_that_had_the_one_before_and_was_left_out_since_comes_back_with_the_next() -> None:
    world = world_of(Post())
    world.add(Database(), "new")
    world.start()
    world.minibatch(0, "a1 b2")
    back = world.sinks.pop()
    world.start()
    world.minibatch(1, "a3 b4")
    world.start()
    world.minibatch(0, "a1 b2")
    world.sinks.append(back)
    world.start()
    world.minibatch(2, "a5")
    assert (world.out.seen, new(world)) == ("a1 b2 a3 b4 a5", "a1 b2 a5")


def test_counted_ids_that_it_has_only_a_part_of_are_not_judged_as_recorded() -> None:
    world = world_of(Database(), COUNTER)
    world.minibatch(0, "a1 b2")
    world.add(Database(), "new", chunk_rows=1)
    world.start()
    opening = world.open(0)
    world.destinations["new"].plan(crash_after)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2")
    with pytest.raises(ConfigurationError, match=r"minibatch 1\.0 is half delivered under ids"):
        judge_minibatch(
            world.client, world.opened().minibatch, Judgement.AS_RECORDED, "ann", "looked"
        )
    world.start()
    world.minibatch(0, "a1 b2")
    assert (world.out.seen, new(world)) == ("a1 b2", "a1 b2")


def states(world: World, event: int) -> dict[str, str]:
    found = Ledger(world.store).find("pay", "a", event)
    return {trace.sink: trace.state for trace in found}


def test_of_counted_ids_a_sink_that_was_added_later_is_not_said_to_have_what_another_had() -> None:
    world = world_of(Database(), COUNTER)
    world.minibatch(0, "a1 a2")
    world.add(Database(), "new")
    world.start()
    world.minibatch(1, "a3")
    assert [states(world, event)["out"] for event in (1, 2, 3)] == ["delivered"] * 3
    assert [states(world, event)["new"] for event in (1, 2)] == ["not seen"] * 2
    [trace] = Ledger(world.store).find("pay", "a", 1, "new")
    assert "ids up to 3 were counted for the pipeline, but this sink was added" in str(trace.why)
    [known] = Ledger(world.store).about("pay", "a", "new")
    assert known.upto is None


def test_of_counted_ids_two_sinks_that_had_all_are_both_said_to_have_it() -> None:
    world = World(COUNTER)
    world.add(Database())
    world.add(Post(), "mail")
    world.start()
    for batch in range(5):
        world.minibatch(batch, f"a{2 * batch} a{2 * batch + 1}")
    assert states(world, 1) == {"out": "handled", "mail": "handled"}
    assert states(world, 10) == {"out": "delivered", "mail": "delivered"}
    assert states(world, 11) == {"out": "not seen", "mail": "not seen"}


def test_of_counted_ids_a_sink_that_was_left_out_is_not_said_to_have_what_came_meanwhile() -> None:
    world = World(COUNTER)
    world.add(Database())
    world.add(Database(), "mail")
    both = list(world.sinks)
    for batch, sinks in enumerate([both, both[:1], both, both, both]):
        world.sinks = sinks
        world.start()
        world.minibatch(batch, f"a{batch}")
    assert world.destinations["mail"].seen == "a0 a2 a3 a4"
    assert states(world, 2) == {"out": "handled", "mail": "not seen"}

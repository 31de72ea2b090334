"""An answer is never stronger than what is known, however long ago it was."""

from __future__ import annotations

import pytest

from delivery.test_finding import IDENTITIES, where
from semel.ledger import Ledger, Trace
from semel.ledger.verbs.pruning import REMEMBER_S, Pruning
from semel.ledger.verbs.rescale import rescale_pipeline
from semel.protocol import OnDoubt
from support.destinations import Crash, Post, crash, crash_after, lost
from support.pipeline import GIVEN, World, world_like, world_of

EXACT = ("transactional", "sequenced")


def trace(world: World, entity: str, event: int, sink: str = "out") -> Trace:
    scope = "t/0" if world.partition == "t/0" else entity
    [found] = Ledger(world.store).find("pay", scope, event, sink)
    return found


def later(world: World, first: int = 1) -> None:
    """Some minibatches, more than a week, and what is old is pruned."""
    for batch in range(first, first + 4):
        world.minibatch(batch, f"b{100 + batch}")
    world.clock.move(3 * REMEMBER_S)
    world.minibatch(first + 4, f"b{104 + first}")
    pruned = Pruning(world.client).run([sink.name for sink in world.sinks])
    assert pruned > 0
    assert world.parked() == []


def rejected(identity: str, decision: str) -> World:
    world = world_like("transactional", IDENTITIES[identity])
    world.out.refuses.add("a1")
    world.minibatch(0, "a1 b2")
    world.resolve("a1", decision)
    return world


@pytest.mark.parametrize("identity", IDENTITIES)
def test_an_event_that_a_person_discarded_stays_so_for_ever(identity: str) -> None:
    world = rejected(identity, "discarded")
    assert where(world, "a", 1) == "discarded"
    later(world)
    assert where(world, "a", 1) == "discarded"
    assert trace(world, "a", 1).minibatch is None


@pytest.mark.parametrize("identity", IDENTITIES)
def test_an_event_that_policy_skip_dropped_without_a_call_is_never_called_delivered(
    identity: str,
) -> None:
    world = world_of(Post(), IDENTITIES[identity], on_doubt=OnDoubt.SKIP)
    opening = world.open(0)
    world.out.plan(crash)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2")
    world.driver.end(opening, world.task(opening, "a1 b2"))
    assert world.out.seen == "b2"
    assert where(world, "a", 1) == "skipped by policy"
    later(world)
    assert where(world, "a", 1) == "skipped by policy"


@pytest.mark.parametrize("identity", IDENTITIES)
def test_what_a_person_called_delivered_is_only_handled_once_that_is_forgotten(
    identity: str,
) -> None:
    world = rejected(identity, "delivered")
    assert where(world, "a", 1) == "delivered"
    later(world)
    assert where(world, "a", 1) in ("handled", "not seen")  # ids that do not increase are forgotten


@pytest.mark.parametrize("kind", ["opaque", "transactional", "sequenced", "repeatable"])
def test_an_offset_that_never_existed_is_not_called_delivered(kind: str) -> None:
    world = world_like(kind, IDENTITIES["position"])
    world.minibatch(0, "a1 b2 a5")
    assert where(world, "a", 3) == "handled"
    for batch in range(1, 5):
        world.minibatch(batch, f"b{10 + batch}")
    assert where(world, "a", 3) == "handled"
    assert trace(world, "a", 3).why == "everything up to 14 is handled"


@pytest.mark.parametrize("identity", IDENTITIES)
@pytest.mark.parametrize("kind", EXACT)
def test_time_and_attempt_are_told_of_a_complete_minibatch_that_is_kept(
    kind: str, identity: str
) -> None:
    world = world_like(kind, IDENTITIES[identity])
    world.minibatch(0, "a1 b2", number=17)
    began = world.clock.now
    world.clock.move(60)
    world.minibatch(1, "b3", number=18)
    found = trace(world, "a", 1)
    assert (found.state, found.attempt, str(found.minibatch)) == ("delivered", "1.17", "1.0")
    assert (found.at, found.osn) == (began, (1, 2))
    world.clock.move(60)
    world.minibatch(2, "b4", number=19)
    found = trace(world, "b", 3 if identity != "counter" else 2)
    assert (found.state, found.attempt, str(found.minibatch)) == ("delivered", "1.18", "1.1")
    assert trace(world, "a", 1).state == "handled"
    assert trace(world, "a", 1).attempt is None


def test_outcomes_survive_a_lost_checkpoint_and_another_number_of_partitions() -> None:
    world = World(GIVEN, partition="0of2", partitions=2)
    world.add(Post(), on_doubt=OnDoubt.SKIP)
    world.start()
    world.out.plan(lost)
    world.minibatch(0, "a1 b2")
    later(world)
    assert where(world, "a", 1) == "skipped by policy"
    rescale_pipeline(world.client, 3)
    world.partition, world.partitions = "0of3", 3
    world.start()
    world.minibatch(6, "b200")
    assert where(world, "a", 1) == "skipped by policy"
    world.minibatch(0, "b200 b201", query="another", accept_gap=True)
    assert where(world, "a", 1) == "skipped by policy"


def test_outcomes_are_kept_by_sink() -> None:
    world = World(GIVEN)
    world.add(Post(), "out", on_doubt=OnDoubt.SKIP)
    world.add(Post(), "other")
    world.start()
    world.out.plan(lost)
    world.minibatch(0, "a1 b2")
    later(world)
    assert trace(world, "a", 1, "out").state == "skipped by policy"
    assert trace(world, "a", 1, "other").state in ("handled", "not seen")


def test_many_outcomes_of_one_entity_are_one_small_row() -> None:
    world = world_of(Post(), GIVEN, on_doubt=OnDoubt.SKIP)
    for batch in range(40):
        world.out.plan(lost, lost)
        world.minibatch(batch, f"a{batch * 2 + 1} a{batch * 2 + 2} b{1_000 + batch}")
    later(world, 40)
    rows, size = world.store.size("outcomes")
    assert rows == 1
    assert size < 200
    assert where(world, "a", 40) == "skipped by policy"


def test_a_pruning_that_is_interrupted_leaves_a_row_or_its_outcome() -> None:
    world = rejected("given", "discarded")
    for batch in range(1, 5):
        world.minibatch(batch, f"b{100 + batch}")
    world.clock.move(3 * REMEMBER_S)
    world.minibatch(5, "b109")
    for moment in ("before", "after"):
        world.wire.forget()
        setattr(world.wire, f"crash_{moment}", 1)
        with pytest.raises(Crash):
            Pruning(world.client).run(["out"])
        world.wire.forget()
        assert where(world, "a", 1) == "discarded"


def test_a_ledger_without_outcomes_answers_handled() -> None:
    """As 0.1 left it: the parked row was pruned, and nothing was kept of it."""
    world = rejected("position", "discarded")
    later(world)
    [(at, _)] = world.store.memory.scan("outcomes", "")
    del world.store.memory._tables["outcomes"][at.key]
    assert where(world, "a", 1) == "handled"


@pytest.mark.parametrize("identity", ["given", "increasing", "position"])
def test_what_may_have_arrived_before_a_lost_checkpoint_is_in_doubt_until_it_comes_again(
    identity: str,
) -> None:
    world = world_like("repeatable", IDENTITIES[identity], chunk_rows=2)
    world.out.plan(crash_after)
    with pytest.raises(Crash):
        world.minibatch(0, "a1 b2")
    assert world.out.seen == "a1 b2"
    world.start()
    world.driver.begin("q2", 0)
    assert [where(world, "a", 1), where(world, "b", 2)] == ["in doubt", "in doubt"]
    assert where(world, "c", 3) == "not seen"
    world.minibatch(0, "a1 b2", "q2")
    assert [where(world, "a", 1), where(world, "b", 2)] == ["delivered", "delivered"]
    assert world.out.seen == "a1 b2"

"""Heads: the first held event of an entity blocks its entity, in order, and no other entity."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from semel.events import Identity
from semel.ledger.verbs.parked import head_key
from semel.protocol import OnDoubt, OnReject
from support.destinations import Crash, Post, after, crash_after, fine, lost, lost_on_the_way
from support.pipeline import (
    COUNTER,
    GIVEN,
    INCREASING,
    KINDS,
    ORDERED_POSITION,
    POSITION,
    World,
    world_like,
    world_of,
)

ORDERED: dict[str, Identity] = {
    "given": GIVEN,
    "increasing": INCREASING,
    "position with entity": ORDERED_POSITION,
    "counter": COUNTER,
}


@pytest.mark.parametrize("identity", ORDERED)
def test_the_first_held_event_blocks_its_entity_only(identity: str) -> None:
    world = world_of(Post(), ORDERED[identity])
    world.out.plan(lost)
    world.minibatch(0, "a1 b2 a3 b4 a5")
    assert world.out.seen == "a1 b2 b4"
    assert world.parked() == ["a1 held", "a3 waiting", "a5 waiting"]
    assert world.heads() == ["a"]
    world.minibatch(1, "a6 b7")
    assert world.out.seen == "a1 b2 b4 b7"
    assert world.parked()[-1] == "a6 waiting"


def test_where_no_entity_is_named_nobody_waits() -> None:
    world = world_of(Post(), POSITION)
    world.out.plan(lost)
    world.minibatch(0, "a1 a2 a3")
    assert world.out.seen == "a1 a2 a3"
    assert [each.split()[1] for each in world.parked()] == ["held"]
    assert world.heads() == []


def test_order_can_be_given_up() -> None:
    world = world_of(Post())
    world.out.plan(lost)
    world.minibatch(0, "a1 a2 a3", order=False)
    assert world.out.seen == "a1 a2 a3"
    assert world.parked() == ["a1 held"]
    assert world.heads() == []


def test_without_the_head_a_follower_would_overtake() -> None:
    world = world_of(Post())
    world.out.plan(lost_on_the_way)
    world.minibatch(0, "a1 a2", order=False)
    assert world.out.seen == "a2"  # a1, sent again later, would come after it


# -- what a person says, and what follows


def held(kind: str = "opaque", identity: Identity = GIVEN) -> World:
    """A world where a1 is parked and a3, a5 wait behind it."""
    world = world_like(kind, identity, on_reject=OnReject.BLOCK, chunk_rows=1)
    if kind == "opaque":
        world.out.plan(lost_on_the_way)
    else:
        world.out.refuses.add("a1")
    world.minibatch(0, "a1 b2 a3 b4 a5")
    assert [each.split()[1] for each in world.parked()][1:] == ["waiting", "waiting"]
    assert world.out.seen == "b2 b4"
    world.out.refuses.clear()
    world.clock.move(1_000)
    return world


@pytest.mark.rows("S21", "N3")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "batches" not in kind])
@pytest.mark.parametrize(
    ("decision", "sent"),
    [("delivered", "a3 a5"), ("discarded", "a3 a5"), ("resend", "a1 a3 a5")],
)
def test_what_waited_is_drained_in_order_when_the_head_is_resolved(
    kind: str, decision: str, sent: str
) -> None:
    world = held(kind)
    world.resolve("a1", decision)
    if kind.startswith("sequenced"):
        assert world.driver.drain() == 0  # only the partition's own task may append
        world.minibatch(1, "b6")
        assert world.out.seen == f"b2 b4 {sent} b6"
    else:
        assert world.driver.drain() == len(sent.split())
        assert world.out.seen == f"b2 b4 {sent}"
    assert world.heads() == []
    world.minibatch(2 if kind.startswith("sequenced") else 1, "a7")
    assert world.out.seen.split()[-1] == "a7"
    first = "delivered" if decision == "resend" else decision
    assert world.parked() == [f"a1 {first}", "a3 delivered", "a5 delivered"]


@pytest.mark.parametrize("identity", ORDERED)
def test_a_resend_keeps_its_order_under_every_identity(identity: str) -> None:
    world = held(identity=ORDERED[identity])
    world.resolve("a1", "resend")
    world.driver.drain()
    assert world.out.seen == "b2 b4 a1 a3 a5"


def test_draining_stops_at_an_event_that_needs_a_person() -> None:
    world = held()
    world.resolve("a1", "resend")
    world.out.plan(fine, lost_on_the_way)
    world.driver.drain()
    assert world.out.seen == "b2 b4 a1"
    assert world.parked() == ["a1 delivered", "a3 held", "a5 waiting"]
    world.minibatch(1, "a6 b7")
    assert world.out.seen == "b2 b4 a1 b7"
    assert world.parked()[-1] == "a6 waiting"


# -- a head that moves while a task parks behind it


def meanwhile_resolved(world: World) -> Callable[[], None]:
    """A person says that a1 was delivered, and the entity is drained, between two steps."""

    def act() -> None:
        world.resolve("a1", "delivered")
        world.driver.drain()

    return act


@pytest.mark.parametrize("kind", ["opaque", "repeatable", "probing", "transactional"])
def test_a_head_that_is_gone_lets_the_event_be_delivered_live(kind: str) -> None:
    world = held(kind)
    opening = world.open(1)
    # The heads were read, and then, before the follower is parked, the entity is unblocked.
    claims_alone = kind.startswith("transactional")
    world.store.script.extend([fine] if claims_alone else [])
    world.store.script.append(after(meanwhile_resolved(world)))
    reports = world.task(opening, "a6 b7")
    world.driver.end(opening, reports)
    assert world.out.seen.split()[2:4] == ["a3", "a5"]
    assert sorted(world.out.seen.split()[4:]) == ["a6", "b7"]
    assert not [each for each in world.parked() if each.startswith("a6")]
    assert world.heads() == []


def test_a_head_that_only_moved_is_parked_behind() -> None:
    world = held()
    opening = world.open(1)

    def another_waits() -> None:
        world.resolve("a1", "resend")  # the head's version moves, the head stays

    world.store.script.append(after(another_waits))
    world.driver.end(opening, world.task(opening, "a6 b7"))
    assert world.parked()[-1] == "a6 waiting"
    assert world.out.seen == "b2 b4 b7"
    world.driver.drain()
    assert world.out.seen == "b2 b4 b7 a1 a3 a5 a6"


def test_without_requiring_the_head_a_follower_would_be_parked_for_ever() -> None:
    world = held()
    opening = world.open(1)

    def resolved_and_forgotten() -> None:
        world.resolve("a1", "delivered")
        world.driver.drain()
        world.store.forgets = lambda each: getattr(each, "key", None) == head

    head = head_key("pay", "out", ("a", "a"))
    world.store.script.append(after(resolved_and_forgotten))
    world.driver.end(opening, world.task(opening, "a6 b7"))
    world.store.forgets = None
    assert world.parked()[-1] == "a6 waiting"
    assert world.heads() == []  # no drain will ever take it
    assert world.driver.drain() == 0
    assert "a6" not in world.out.seen


# -- across attempts


def test_a_second_attempt_reads_the_heads_that_the_first_one_made() -> None:
    world = world_of(Post())
    opening = world.open(0)
    world.out.plan(lost, crash_after)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2 a3")
    world.driver.end(opening, world.task(opening, "a1 b2 a3"))
    assert world.out.seen == "a1 b2"
    assert world.parked() == ["a1 held", "b2 held", "a3 waiting"]


def test_open_tells_new_partitions_whether_there_are_heads_to_read() -> None:
    world = world_of(Post())
    world.minibatch(0, "a1 b2")
    assert world.opened().blocked == ()
    world.store.scans.clear()
    world.minibatch(1, "b3")
    assert ("heads", "pay/out/") not in world.store.scans[-1:]
    world.out.plan(lost)
    world.minibatch(2, "a4")
    opening = world.open(3)
    assert opening.row.blocked == ("out",)


@pytest.mark.rows("S21", "N3")
@pytest.mark.parametrize(
    ("policy", "seen", "parked"),
    [
        (OnDoubt.HOLD, "a1 b3", ["a1 held", "a2 waiting"]),
        (OnDoubt.SKIP, "a1 a2 b3", ["a1 skipped"]),
        (OnDoubt.RESEND, "a1 a1 a2 b3", ["a1 resent"]),
    ],
)
def test_an_event_in_doubt_follows_the_stated_policy(
    policy: OnDoubt, seen: str, parked: list[str]
) -> None:
    world = world_of(Post(), on_doubt=policy)
    world.out.plan(lost)
    world.minibatch(0, "a1 a2 b3")
    assert world.out.seen == seen
    assert world.parked() == parked

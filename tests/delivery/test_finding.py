"""Was event 7 of customer 42 delivered? What the ledger says of one event, and of a pipeline."""

from __future__ import annotations

import pytest

from semel.events import Identity
from semel.ledger import Ledger
from semel.ledger.verbs.divergence import judge_minibatch
from semel.protocol import Judgement, OnReject
from support.destinations import Couriers, Crash, away, crash, crash_after, fine, lost
from support.pipeline import (
    COUNTER,
    GIVEN,
    INCREASING,
    ORDERED_POSITION,
    POSITION,
    World,
    world_like,
)

IDENTITIES: dict[str, Identity] = {
    "position": POSITION,
    "position with entity": ORDERED_POSITION,
    "given": GIVEN,
    "increasing": INCREASING,
    "counter": COUNTER,
}


def where(world: World, entity: str, event: int) -> str:
    """Ask by the name that the identity has for it."""
    scope = "t/0" if world.partition == "t/0" else entity
    [trace] = Ledger(world.store).find("pay", scope, event)
    return trace.state


def ids(identity: str) -> tuple[int, int]:
    """The ids of two events of one entity: as they came, or as they were counted."""
    return (1, 2) if identity == "counter" else (1, 3)


@pytest.mark.rows("N11")
@pytest.mark.parametrize("identity", IDENTITIES)
@pytest.mark.parametrize("kind", ["opaque", "transactional", "repeatable", "sequenced"])
def test_what_was_delivered_is_found_now_and_many_minibatches_later(
    identity: str, kind: str
) -> None:
    world = world_like(kind, IDENTITIES[identity])
    first, second = ids(identity)
    assert where(world, "a", first) == "not seen"
    world.minibatch(0, "a1 b2 a3")
    only_the_last = identity == "increasing" and kind in ("transactional", "sequenced")
    assert where(world, "a", first) == ("handled" if only_the_last else "delivered")
    assert where(world, "a", second) == "delivered"
    assert where(world, "a", 99) == "not seen"
    for batch in range(1, 5):
        world.minibatch(batch, f"b{10 + batch}")
    assert where(world, "a", first) == "handled"
    assert where(world, "a", 99) == "not seen"


@pytest.mark.parametrize("kind", ["transactional", "sequenced"])
def test_no_attempt_is_named_for_what_one_before_it_may_have_delivered(kind: str) -> None:
    world = world_like(kind, GIVEN)
    opening = world.open(0)
    world.out.plan(crash_after)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2 c3 d4 e5 f6")
    world.driver.end(opening, world.task(opening, "a1 b2 c3 d4 e5 f6"))
    [trace] = Ledger(world.store).find("pay", "a", 1)
    assert (trace.state, trace.attempt, trace.at) == ("delivered", None, None)
    assert trace.why is not None
    assert "completed its partition, which it took over" in trace.why
    world.minibatch(1, "a7")
    [trace] = Ledger(world.store).find("pay", "a", 7)
    assert (trace.state, trace.why) == ("delivered", None)
    assert trace.attempt is not None


@pytest.mark.rows("N11")
@pytest.mark.parametrize("identity", IDENTITIES)
def test_an_event_in_doubt_its_followers_and_what_became_of_them_are_found(identity: str) -> None:
    world = world_like("opaque", IDENTITIES[identity])
    first, second = ids(identity)
    world.out.plan(lost)
    world.minibatch(0, "a1 b2 a3")
    assert where(world, "a", first) == "in doubt"
    assert where(world, "a", second) == ("delivered" if identity == "position" else "parked")
    if identity == "position":
        return
    world.resolve("a1", "discarded")
    assert where(world, "a", first) == "discarded"
    world.driver.drain()
    assert where(world, "a", second) == "delivered"


@pytest.mark.parametrize("identity", IDENTITIES)
@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_what_was_discarded_because_it_came_anew_is_found_as_it_is_now(
    identity: str, kind: str
) -> None:
    world = world_like(kind, IDENTITIES[identity])
    world.out.refuses.add("a1")
    world.minibatch(0, "a1 b2")
    judge_minibatch(world.client, world.opened().minibatch, Judgement.AS_REPLAYED, "ann", "looked")
    world.start()
    opening = world.open(0)
    assert world.parked() == ["a1 discarded"]
    assert where(world, "a", 1) in ("discarded", "pending")
    world.out.refuses.clear()
    world.driver.end(opening, world.task(opening, "a1=9 b2=9"))
    assert where(world, "a", 1) == "delivered"
    for batch in range(1, 5):
        world.minibatch(batch, f"b{10 + batch}")
    assert where(world, "a", 1) == "handled"


@pytest.mark.parametrize("identity", IDENTITIES)
def test_what_a_person_discarded_and_is_delivered_as_replayed_is_found_delivered(
    identity: str,
) -> None:
    world = world_like("transactional", IDENTITIES[identity])
    world.out.refuses.add("a1")
    world.minibatch(0, "a1 b2")
    world.resolve("a1", "discarded")
    judge_minibatch(world.client, world.opened().minibatch, Judgement.AS_REPLAYED, "ann", "looked")
    world.start()
    world.out.refuses.clear()
    world.minibatch(0, "a1=9 b2=9")
    assert world.out.seen == "b2 a1 b2"
    assert where(world, "a", 1) == "delivered"


@pytest.mark.parametrize("identity", IDENTITIES)
def test_what_was_discarded_and_is_parked_anew_is_found_parked(identity: str) -> None:
    world = world_like("transactional", IDENTITIES[identity])
    world.out.refuses.add("a1")
    world.minibatch(0, "a1 b2")
    judge_minibatch(world.client, world.opened().minibatch, Judgement.AS_REPLAYED, "ann", "looked")
    world.start()
    world.minibatch(0, "a1=9 b2=9")
    assert world.parked() == ["a1 discarded", "a1 rejected"]
    assert where(world, "a", 1) == "parked"


def test_an_event_that_was_delivered_beside_one_that_is_still_sent_is_not_in_doubt() -> None:
    world = World(GIVEN)
    world.add(Couriers(), chunk_rows=3)
    world.start()
    world.out.plan(away, fine, away, crash)
    opening = world.open(0)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2 c3")
    assert world.out.seen == "b2"
    assert where(world, "b", 2) == "delivered"
    assert where(world, "a", 1) == "in doubt"


@pytest.mark.rows("N11")
@pytest.mark.parametrize("identity", IDENTITIES)
def test_a_dead_letter_is_found(identity: str) -> None:
    world = world_like("transactional", IDENTITIES[identity], on_reject=OnReject.BLOCK)
    world.out.refuses.add("a1")
    world.minibatch(0, "a1 b2")
    assert where(world, "a", 1) == "parked"
    world.resolve("a1", "delivered")
    assert where(world, "a", 1) == "delivered"


@pytest.mark.rows("N11")
@pytest.mark.parametrize("identity", IDENTITIES)
def test_what_an_attempt_is_about_to_send_is_in_doubt_or_pending(identity: str) -> None:
    world = world_like("opaque", IDENTITIES[identity])
    opening = world.open(0)
    world.out.plan(crash_after)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2")
    assert where(world, "a", 1) == "in doubt"
    world = world_like("transactional", IDENTITIES[identity])
    opening = world.open(0)
    world.out.plan(crash)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2")
    assert where(world, "a", 1) == "pending"


@pytest.mark.rows("N11")
def test_a_trace_tells_minibatch_attempt_and_number() -> None:
    world = world_like("repeatable")
    world.minibatch(0, "a1 b2", number=17)
    [trace] = Ledger(world.store).find("pay", "b", 2)
    assert (trace.state, trace.attempt) == ("delivered", "1.17")
    assert str(trace.minibatch) == "1.0"
    assert trace.osn is not None
    assert trace.osn[0] <= 2 <= trace.osn[1]


def test_a_summary_tells_who_runs_what_is_open_and_what_is_parked() -> None:
    world = world_like("opaque")
    world.out.plan(lost)
    world.minibatch(0, "a1 b2 a3")
    world.open(1)
    ledger = Ledger(world.store)
    assert ledger.pipelines() == ["pay"]
    summary = ledger.summary("pay")
    assert (summary.run, str(summary.minibatch), summary.complete) == (1, "1.1", False)
    assert summary.sinks["out"].to_json() == {
        "capability": "opaque",
        "partitions": {"complete": 1},
        "last_osn": 3,
        "delivered": 1,
        "transmitted": {"0": 2},
        "parked": {"held": 1, "waiting": 1},
        "last_resend": None,
        "blocked": 1,
        "oldest_parked_at": {"held": 1000.0, "waiting": 1000.0},
        "delivered_in_open": 0,
        "cut": [],
    }
    assert [row.event for _, row in ledger.parked("pay")] == [1, 3]


def test_looking_changes_nothing() -> None:
    world = world_like("opaque")
    world.out.plan(lost)
    world.minibatch(0, "a1 b2 a3")
    before = world.store.memory.rows()
    ledger = Ledger(world.store)
    ledger.summary("pay")
    ledger.find("pay", "a", 1)
    ledger.parked("pay")
    assert world.store.memory.rows() == before


@pytest.mark.parametrize("entity", ["met", "forgot", "number"])
def test_an_entity_may_be_called_like_a_word_of_the_journal(entity: str) -> None:
    world = world_like("opaque")
    world.minibatch(0, "a1")
    world.minibatch(0, "a1 b2", query="another")  # the checkpoint was lost: `met` is written
    for number in range(1, 4):
        world.minibatch(number, f"a{10 + number}", query="another")
    assert where(world, entity, 1) == "not seen"
    assert where(world, "a", 1) == "handled"


def test_what_is_known_of_an_entity_is_its_watermark_what_is_parked_and_its_head() -> None:
    world = world_like("opaque", INCREASING)
    world.minibatch(0, "a1 b2")
    world.out.plan(lost)
    world.minibatch(1, "a3 b4 a5")
    ledger = Ledger(world.store)
    [known] = ledger.about("pay", "a")
    assert known.upto == 5
    assert [row.event for _, row in known.parked] == [3, 5]
    assert [head.waiting for head in known.heads] == [1]
    [nothing] = ledger.about("pay", "z")
    assert not nothing

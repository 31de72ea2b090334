"""A replay has other content than what was delivered: a person judges, and the pipeline goes on."""

from __future__ import annotations

from collections import Counter as Tally

import pytest

from semel.errors import ConfigurationError, Diverged, Fenced
from semel.events import Identity, Minibatch
from semel.ledger.client import LedgerClient
from semel.ledger.verbs.divergence import judge_minibatch
from semel.protocol import Judgement, OnDoubt, OnReject
from support.destinations import Crash, Post, crash_after, fine, lost
from support.pipeline import (
    COUNTER,
    GIVEN,
    INCREASING,
    KINDS,
    ORDERED_POSITION,
    POSITION,
    World,
    crash_everywhere,
    once,
    reply_lost,
    world_like,
    world_of,
)

IDENTITIES: dict[str, Identity] = {
    "position": POSITION,
    "position with entity": ORDERED_POSITION,
    "given": GIVEN,
    "increasing": INCREASING,
    "counter": COUNTER,
}
SURVIVING = [name for name in IDENTITIES if name != "counter"]
IN_DOUBT = ("opaque", "opaque batches", "repeatable by chunk")
FIRST, SECOND, REPLAY, THIRD = "a1 b2", "c3 d4 e5 f6", "c3=9 d4=9 e5=9 f6=9 a7", "b8 c9"


def half_done(kind: str, identity: Identity, **settings: object) -> World:
    """The first minibatch is complete; c3 and d4 of the second were sent when it crashed."""
    world = world_like(kind, identity, chunk_rows=1, span_chunks=1, **settings)
    world.minibatch(0, FIRST)
    opening = world.open(1)
    world.out.plan(fine, crash_after)
    with pytest.raises(Crash):
        world.task(opening, SECOND)
    return world


def diverge(world: World, text: str = REPLAY, batch: int = 1) -> None:
    """The query starts again and gives other rows for the same input."""
    world.start()
    opening = world.open(batch)
    with pytest.raises(Diverged, match=r"as-recorded\|as-replayed"):
        world.driver.end(opening, world.task(opening, text))


def say(world: World, decision: Judgement) -> None:
    """A person has looked."""
    judge_minibatch(world.client, world.opened().minibatch, decision, "ann", "looked")


def seen(world: World) -> dict[str, int]:
    return dict(Tally(world.out.seen.split()))


def no_number_twice(world: World) -> bool:
    return len(world.out.numbers) == len(set(world.out.numbers))


EACH_ONCE = dict.fromkeys(f"{FIRST} {SECOND} a7 {THIRD}".split(), 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("identity", SURVIVING)
def test_as_recorded_what_was_delivered_stands_and_the_rest_of_the_replay_is_delivered(
    kind: str, identity: str
) -> None:
    world = half_done(kind, IDENTITIES[identity])
    diverge(world)
    say(world, Judgement.AS_RECORDED)
    world.start()
    world.minibatch(1, REPLAY)
    world.minibatch(2, THIRD)
    assert seen(world) == EACH_ONCE
    held = ["d4 held"] if kind in IN_DOUBT else []
    assert world.parked() == held
    assert all(row.why.startswith("a person judged") for _, row in world.parked_rows())
    values = {effect.name: effect.value["v"] for effect in world.out.effects}
    assert (values["c3"], values["e5"], values["a7"]) == (0, 9, 0)
    assert world.opened().judged is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("identity", IDENTITIES)
def test_as_replayed_everything_the_replay_gives_is_delivered(kind: str, identity: str) -> None:
    world = half_done(kind, IDENTITIES[identity])
    diverge(world)
    say(world, Judgement.AS_REPLAYED)
    world.start()
    world.minibatch(1, REPLAY)
    world.minibatch(2, THIRD)
    absorbed = kind == "repeatable"  # by the event's key, and by counted ids that is another event
    assert seen(world) == EACH_ONCE | ({} if absorbed else {"c3": 2, "d4": 2})
    assert world.parked() == []
    if kind != "opaque batches":
        assert no_number_twice(world)
    counted = [effect.event for effect in world.out.effects if effect.name == "c9"]
    assert counted == [2 if identity == "counter" and kind != "opaque batches" else 9]


def test_by_position_events_between_those_delivered_are_not_lost() -> None:
    world = world_of(Post(), POSITION)
    world.minibatch(0, "a1")
    opening = world.open(1)
    world.out.plan(fine, fine, crash_after)
    with pytest.raises(Crash):
        world.task(opening, "a3 a5 a7 a9")
    diverge(world, "a3 a4 a5 a6 a7 a8 a9")
    say(world, Judgement.AS_RECORDED)
    world.start()
    world.minibatch(1, "a3 a4 a5 a6 a7 a8 a9")
    assert once(world.out.seen) == "a1 a3 a4 a5 a6 a7 a8 a9"
    world.minibatch(2, "a12")  # what lies between was filtered out, as it was before
    world.start()
    world.minibatch(0, "a1 a3 a4 a5 a6 a7 a8 a9 a12 a13", "q2")
    assert once(world.out.seen) == "a1 a3 a4 a5 a6 a7 a8 a9 a12 a13"


@pytest.mark.parametrize("identity", SURVIVING)
@pytest.mark.parametrize("decision", Judgement)
def test_a_partition_that_the_replay_does_not_have_is_closed(
    identity: str, decision: Judgement
) -> None:
    world = half_done("transactional", IDENTITIES[identity])
    world.start()
    opening = world.open(1)
    with pytest.raises(Diverged, match="no task reports it"):
        world.driver.end(opening, [])
    say(world, decision)
    world.start()
    world.driver.end(world.open(1), [])
    assert world.streams() == []
    world.minibatch(2, "b8")
    assert once(world.out.seen) == once(f"{FIRST} c3 d4 b8")


@pytest.mark.parametrize("kind", ["opaque", "transactional", "sequenced", "sequenced by opener"])
@pytest.mark.parametrize("identity", IDENTITIES)
@pytest.mark.parametrize("decision", Judgement)
def test_a_crash_at_any_call_after_a_judgement_changes_nothing(
    kind: str, identity: str, decision: Judgement
) -> None:
    if identity == "counter" and decision is Judgement.AS_RECORDED:
        return

    def make() -> World:
        world = half_done(kind, IDENTITIES[identity])
        diverge(world)
        say(world, decision)
        return world

    def go_on(world: World) -> None:
        world.start()
        world.open(1)

    twice = {"c3": 2, "d4": 2} if decision is Judgement.AS_REPLAYED else {}
    for what, world in crash_everywhere(make, go_on):
        world.start()
        world.minibatch(1, REPLAY)
        world.minibatch(2, THIRD)
        assert seen(world) == EACH_ONCE | twice, what
        assert no_number_twice(world), what


@pytest.mark.parametrize("kind", ["transactional", "sequenced", "sequenced by opener"])
def test_the_same_run_acts_on_it_with_its_next_begin(kind: str) -> None:
    world = half_done(kind, GIVEN)
    diverge(world)
    say(world, Judgement.AS_RECORDED)
    world.minibatch(1, REPLAY)
    assert once(world.out.seen) == once(f"{FIRST} {SECOND} a7")


def test_an_attempt_from_before_the_judgement_can_write_no_more() -> None:
    world = world_like("opaque", GIVEN)
    opening = world.open(0)
    world.out.plan(fine)
    world.task(opening, "a1")
    say(world, Judgement.AS_RECORDED)
    with pytest.raises(Fenced):
        world.task(opening, "a1 b2")
    with pytest.raises(Fenced):
        world.driver.end(opening, [])


# -- a minibatch that is complete


@pytest.mark.parametrize("kind", ["opaque", "repeatable", "repeatable by chunk", "probing"])
@pytest.mark.parametrize("first", ["", "a1"])
def test_by_position_events_between_those_of_a_complete_minibatch_are_not_lost(
    kind: str, first: str
) -> None:
    world = world_like(kind, POSITION, chunk_rows=2)
    world.driver.end(opening := world.open(0), world.task(opening, first))
    world.minibatch(1, "a3 a5 a7")
    diverge(world, "a2 a3 a4 a5 a6 a7")
    say(world, Judgement.AS_RECORDED)
    world.start()
    world.minibatch(1, "a2 a3 a4 a5 a6 a7")
    world.minibatch(2, "a9")
    assert once(world.out.seen) == f"{first} a2 a3 a4 a5 a6 a7 a9".strip()
    world.start()
    world.minibatch(0, f"{first} a2 a3 a4 a5 a6 a7 a9 a10", "q2")
    assert once(world.out.seen) == f"{first} a2 a3 a4 a5 a6 a7 a9 a10".strip()


def test_by_position_a_complete_minibatch_that_shrank_repeats_nothing_later() -> None:
    world = world_like("opaque", POSITION)
    world.minibatch(0, "a1")
    world.minibatch(1, "a3 a5 a7")
    diverge(world, "a3 a4")
    say(world, Judgement.AS_RECORDED)
    world.start()
    world.minibatch(1, "a3 a4")
    world.minibatch(2, "a5 a6 a7 a8")
    assert once(world.out.seen) == "a1 a3 a4 a5 a6 a7 a8"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("identity", SURVIVING)
def test_a_complete_minibatch_as_recorded_skips_what_was_delivered_and_delivers_the_rest(
    kind: str, identity: str
) -> None:
    world = world_like(kind, IDENTITIES[identity])
    world.minibatch(0, FIRST)
    world.minibatch(1, SECOND)
    diverge(world, "c3=9 d4=9 e5=9 f6=9")
    say(world, Judgement.AS_RECORDED)
    for _ in range(2):  # the second time because Spark crashed before its own commit
        world.start()
        world.minibatch(1, REPLAY)
    world.minibatch(2, THIRD)
    assert seen(world) == EACH_ONCE
    assert world.parked() == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_complete_minibatch_of_counted_ids_as_recorded_is_settled_without_a_task(
    kind: str,
) -> None:
    world = world_like(kind, COUNTER)
    world.minibatch(0, FIRST)
    world.minibatch(1, SECOND)
    diverge(world, "c3=9 d4=9 e5=9 f6=9")
    say(world, Judgement.AS_RECORDED)
    for _ in range(2):  # the second time because Spark crashed before its own commit
        world.start()
        opening = world.open(1)
        assert opening.settled
        world.driver.end(opening, [])
    opening = world.open(2)
    assert not opening.settled
    world.driver.end(opening, world.task(opening, THIRD))
    assert once(world.out.seen) == once(f"{FIRST} {SECOND} {THIRD}")


def test_nothing_is_reported_of_what_is_settled() -> None:
    world = world_like("opaque", COUNTER)
    reports = world.minibatch(0, FIRST)
    say(world, Judgement.AS_RECORDED)
    opening = world.open(0)
    with pytest.raises(AssertionError, match="a settled minibatch has no reports"):
        world.driver.end(opening, reports)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("identity", IDENTITIES)
def test_a_complete_minibatch_as_replayed_goes_back_and_is_delivered_anew(
    kind: str, identity: str
) -> None:
    world = world_like(kind, IDENTITIES[identity])
    world.minibatch(0, FIRST)
    world.minibatch(1, SECOND)
    diverge(world, "c3=9 d4=9 e5=9 f6=9")
    say(world, Judgement.AS_REPLAYED)
    world.start()
    world.minibatch(1, REPLAY)
    world.minibatch(2, THIRD)
    absorbed = kind == "repeatable"
    twice = {} if absorbed else dict.fromkeys(SECOND.split(), 2)
    assert seen(world) == EACH_ONCE | twice
    if kind != "opaque batches":
        assert no_number_twice(world)
        counted = [effect.event for effect in world.out.effects if effect.name == "c9"]
        assert counted == [2 if identity == "counter" else 9]


def test_by_position_a_complete_partition_that_grew_and_then_diverged_is_folded() -> None:
    world = world_like("opaque", POSITION)
    world.minibatch(0, FIRST)
    world.minibatch(1, "c3 d4")
    world.start()
    opening = world.open(1)
    world.out.plan(fine, crash_after)
    with pytest.raises(Crash):
        world.task(opening, "c3 d4 e5 f6")
    diverge(world, "c3 d4=9 e5 f6")
    say(world, Judgement.AS_RECORDED)
    world.start()
    opening = world.open(1)
    assert not opening.settled
    world.driver.end(opening, world.task(opening, "c3 d4=9 e5 f6 a7"))
    assert once(world.out.seen) == once(f"{FIRST} {SECOND} a7")
    assert world.parked() == ["f6 held"]


def test_the_minibatch_before_the_newest_is_judged_as_recorded_only() -> None:
    world = world_like("transactional", GIVEN)
    world.minibatch(0, FIRST)
    world.minibatch(1, SECOND)
    diverge(world, "a1=9 b2", batch=0)
    with pytest.raises(ConfigurationError, match=r"minibatch after 1\.0 was delivered"):
        say(world, Judgement.AS_REPLAYED)
    say(world, Judgement.AS_RECORDED)
    world.start()
    world.minibatch(0, "a1=9 b2")
    world.minibatch(1, SECOND)
    world.minibatch(2, THIRD)
    assert once(world.out.seen) == once(f"{FIRST} {SECOND} {THIRD}")


# -- parked events


def test_as_replayed_what_was_parked_of_it_is_discarded_and_blocks_nobody() -> None:
    world = world_of(Post(), GIVEN, on_doubt=OnDoubt.HOLD)
    opening = world.open(0)
    world.out.plan(fine, lost)
    world.task(opening, "a1 b2 b3 c4")
    assert world.parked() == ["b2 held", "b3 waiting"]
    say(world, Judgement.AS_REPLAYED)
    world.start()
    world.minibatch(0, "a1 b2=9 b3 c4")
    assert seen(world) == {"a1": 2, "b2": 2, "b3": 1, "c4": 2}
    assert world.parked() == ["b2 discarded", "b3 discarded"]
    assert world.heads() == []


@pytest.mark.parametrize("decision", ["resend", "discarded"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "repeatable"])
def test_as_replayed_what_a_person_had_released_is_not_sent_besides(
    kind: str, decision: str
) -> None:
    world = world_like(kind, chunk_rows=1, on_reject=OnReject.BLOCK)
    world.out.refuses.add("b2")
    opening = world.open(0)
    world.task(opening, "a1 b2 b3")
    assert world.parked() == ["b2 rejected", "b3 waiting"]
    world.out.refuses.clear()
    world.resolve("b2", decision)
    say(world, Judgement.AS_REPLAYED)
    world.start()
    world.driver.drain()
    world.minibatch(0, "a1 b2=9 b3")
    assert seen(world) == {"a1": 2, "b2": 1, "b3": 1}
    assert world.parked() == ["b2 discarded", "b3 discarded"]
    assert world.heads() == []


def test_as_recorded_what_was_parked_of_it_stays_parked() -> None:
    world = world_of(Post(), GIVEN, on_doubt=OnDoubt.HOLD)
    opening = world.open(0)
    world.out.plan(fine, lost)
    world.task(opening, "a1 b2 b3 c4")
    say(world, Judgement.AS_RECORDED)
    world.start()
    world.minibatch(0, "a1 b2=9 b3 c4 c5")
    assert once(world.out.seen) == "a1 b2 c4 c5"
    assert world.parked() == ["b2 held", "b3 waiting"]
    world.resolve("b2", "delivered")
    world.driver.drain()
    assert once(world.out.seen) == "a1 b2 b3 c4 c5"


# -- what is refused, and what may be repeated


def test_ids_that_were_counted_cannot_be_kept_half_way() -> None:
    world = half_done("transactional", COUNTER)
    with pytest.raises(ConfigurationError, match="Use as-replayed, which delivers all of it again"):
        say(world, Judgement.AS_RECORDED)


def test_another_minibatch_and_another_pipeline_are_refused() -> None:
    world = half_done("opaque", GIVEN)
    for wrong in (Minibatch(1, 0), Minibatch(1, 2), Minibatch(2, 1)):
        with pytest.raises(ConfigurationError, match=r"which is 1\.1\. Judge only the minibatch"):
            judge_minibatch(world.client, wrong, Judgement.AS_RECORDED, "ann", "looked")
    nobody = LedgerClient(world.store, "typo", world.clock)
    with pytest.raises(ConfigurationError, match="'typo' is not in this ledger"):
        judge_minibatch(nobody, Minibatch(1, 1), Judgement.AS_RECORDED, "ann", "looked")


@pytest.mark.parametrize("decision", Judgement)
def test_a_lost_reply_changes_nothing(decision: Judgement) -> None:
    world = half_done("transactional", GIVEN)
    diverge(world)
    world.store.script.append(reply_lost)
    say(world, decision)
    version = world.opened().version
    say(world, decision)
    assert world.opened().version == version
    world.start()
    world.store.script.append(reply_lost)  # the open that acts on it
    world.minibatch(1, REPLAY)
    world.minibatch(2, THIRD)
    twice = {"c3": 2, "d4": 2} if decision is Judgement.AS_REPLAYED else {}
    assert seen(world) == EACH_ONCE | twice


def test_a_person_may_change_a_mind_until_the_pipeline_starts() -> None:
    world = half_done("transactional", GIVEN)
    diverge(world)
    say(world, Judgement.AS_REPLAYED)
    say(world, Judgement.AS_RECORDED)
    world.start()
    world.minibatch(1, REPLAY)
    world.minibatch(2, THIRD)
    assert seen(world) == EACH_ONCE

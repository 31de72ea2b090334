"""Park before you pass: a rejected event is in the ledger before progress or C passes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from semel.errors import DeliveryError, HeldInDoubt, NotDelivered, OutcomeUnknown
from semel.events import Chunk, Identity
from semel.ledger.store.commit import Delete
from semel.protocol import OnDoubt, OnReject
from semel.sinks import Retry
from support.destinations import Couriers, Crash, Database, ForgetsRejected, Post, away, fine, lost
from support.pipeline import (
    EXACT,
    GIVEN,
    KINDS,
    POSITION,
    World,
    crash_everywhere,
    once,
    world_like,
    world_of,
)

INPUT = "a1 b2 c3 d4 e5 f6"
ABSORBING = tuple(kind for kind in EXACT if kind.startswith("repeatable"))
CERTAIN = tuple(kind for kind in EXACT if kind not in ABSORBING)
"""Those that can say, after a crash, that what they refuse now did not arrive before."""


def refusing(kind: str, *names: str, **settings: Any) -> Callable[[], World]:
    def make() -> World:
        world = world_like(kind, chunk_rows=3, **settings)
        world.out.refuses.update(names)
        return world

    return make


def deliver(world: World) -> None:
    """One attempt at the first minibatch of the run."""
    opening = world.open(0)
    world.driver.end(opening, world.task(opening, INPUT))


def go_on(world: World) -> None:
    """The query is restarted, with the same checkpoint."""
    world.start()
    deliver(world)


# -- a bad event is isolated


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_bad_event_is_parked_and_all_others_are_delivered_once(kind: str) -> None:
    world = refusing(kind, "b2")()
    deliver(world)
    assert once(world.out.seen) == "a1 c3 d4 e5 f6"
    assert world.parked() == ["b2 rejected"]
    assert world.heads() == []
    [(_, row)] = world.parked_rows()
    assert row.value is not None
    assert row.value["id"] == 2
    assert "refused" in row.why


@pytest.mark.parametrize("kind", KINDS)
def test_two_bad_events_in_one_chunk_are_both_isolated(kind: str) -> None:
    world = refusing(kind, "a1", "c3", "f6")()
    deliver(world)
    assert once(world.out.seen) == "b2 d4 e5"
    assert world.parked() == ["a1 rejected", "c3 rejected", "f6 rejected"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_entity_goes_on_after_its_dead_letter(kind: str) -> None:
    world = world_like(kind, chunk_rows=3)
    world.out.refuses.add("a1")
    world.minibatch(0, "a1 b2 a3")
    world.minibatch(1, "a4")
    assert once(world.out.seen) == "b2 a3 a4"
    assert world.parked() == ["a1 rejected"]


@pytest.mark.parametrize("kind", KINDS)
def test_followers_wait_behind_a_dead_letter_that_blocks(kind: str) -> None:
    world = world_like(kind, chunk_rows=3, on_reject=OnReject.BLOCK)
    world.out.refuses.add("a1")
    if kind == "transactional script":
        # One script applies the good events of the chunk together: only later chunks can wait.
        world.minibatch(0, "a1 b2 c3")
    else:
        world.minibatch(0, "a1 b2 a3")
    world.minibatch(1, "a4 b5")
    waits = [] if kind == "transactional script" else ["a3 waiting"]
    assert world.parked() == ["a1 rejected", *waits, "a4 waiting"]
    assert "b2" in world.out.seen
    assert "b5" in world.out.seen
    assert "a4" not in world.out.seen
    assert world.heads() == ["a"]


# -- a crash at any point of it


@pytest.mark.rows("A4", "S11")
@pytest.mark.parametrize("kind", CERTAIN)
def test_a_crash_at_any_call_neither_loses_nor_repeats_nor_parks_twice(kind: str) -> None:
    for what, world in crash_everywhere(refusing(kind, "b2", "e5"), deliver):
        go_on(world)
        assert once(world.out.seen) == "a1 c3 d4 f6", what
        assert world.parked() == ["b2 rejected", "e5 rejected"], what


@pytest.mark.rows("A4", "S11")
@pytest.mark.parametrize("kind", ABSORBING)
def test_a_refusal_of_what_a_crashed_attempt_may_have_sent_is_held_and_not_repeated(
    kind: str,
) -> None:
    for what, world in crash_everywhere(refusing(kind, "b2", "e5"), deliver):
        go_on(world)
        seen = world.out.seen.split()
        parked = dict(each.split() for each in world.parked())
        assert sorted([*seen, *parked]) == sorted(INPUT.split()), what
        assert {"b2", "e5"} <= set(parked), what
        assert set(parked.values()) <= {"held", "rejected"}, what
        assert [name for name, state in parked.items() if state == "rejected"] <= ["b2", "e5"], what
        if kind == "repeatable":
            assert set(parked) == {"b2", "e5"}, what
        if what == "nothing crashed":
            assert parked == {"b2": "rejected", "e5": "rejected"}


@pytest.mark.rows("S11", "S21")
@pytest.mark.parametrize("kind", ["opaque", "opaque batches"])
def test_an_opaque_destination_gets_nothing_twice_and_what_is_missing_is_parked(kind: str) -> None:
    for what, world in crash_everywhere(refusing(kind, "b2", "e5"), deliver):
        go_on(world)
        seen = once(world.out.seen).split()
        assert len(seen) == len(set(seen)), what
        parked = {each.split()[0] for each in world.parked()}
        assert set(seen) | parked == set(INPUT.split()), what
        doubtful = [name for name in world.parked() if name.endswith("held")]
        assert len(doubtful) <= 3, what  # the window


def lost_or_repeated(make: Callable[[], World], wanted: str | None) -> list[str]:
    """The crashes after which an event is neither at the destination nor parked, or there twice."""
    found = []
    for what, world in crash_everywhere(make, deliver):
        go_on(world)
        parked = {each.split()[0] for each in world.parked()}
        if wanted is None:
            left = [name for name in INPUT.split() if name not in parked]
            wrong = once(world.out.seen) != " ".join(left)
        else:
            wrong = once(world.out.seen) != wanted
        if wrong or parked | set(world.out.seen.split()) != set(INPUT.split()):
            found.append(what)
    return found


def parks_late(make: Callable[[], World]) -> Callable[[], World]:
    """The same worlds, but what is parked is kept only when the minibatch is completed."""

    def made() -> World:
        world = make()
        world.store.keeps_late = "parked"
        return world

    return made


@pytest.mark.parametrize("kind", EXACT)
def test_without_parking_first_a_crash_would_lose_the_event(kind: str) -> None:
    make = refusing(kind, "b2", "e5")
    wanted = None if kind in ABSORBING else "a1 c3 d4 f6"
    assert lost_or_repeated(make, wanted) == []
    assert lost_or_repeated(parks_late(make), wanted) != []


# -- where one script does both


def test_the_next_chunk_starts_only_when_what_the_script_rejected_is_parked() -> None:
    world = refusing("transactional script", "b2")()
    world.wire.forget()
    deliver(world)
    log = world.wire.log
    first, second = log.index("send a1 b2 c3"), log.index("send d4 e5 f6")
    assert log[first + 1 : second] == ["commit parked"]


def test_a_new_attempt_parks_what_the_progress_row_says_was_rejected() -> None:
    world = refusing("transactional script", "b2")()
    opening = world.open(0)
    world.wire.crash_before = world.wire.crossed + 3  # claim, transaction, then the parking
    with pytest.raises(Crash):
        world.task(opening, INPUT)
    assert world.parked() == []
    world.driver.end(opening, world.task(opening, INPUT))
    assert once(world.out.seen) == "a1 c3 d4 e5 f6"
    assert world.parked() == ["b2 rejected"]


def test_without_the_rejected_positions_in_the_row_the_event_would_be_lost() -> None:
    def make() -> World:
        world = world_of(Database(progress=ForgetsRejected(), one_script=True), chunk_rows=3)
        world.out.refuses.add("b2")
        return world

    assert lost_or_repeated(refusing("transactional script", "b2"), "a1 c3 d4 e5 f6") == []
    assert lost_or_repeated(make, "a1 c3 d4 e5 f6") != []


# -- too much of it


@pytest.mark.rows("S21")
@pytest.mark.parametrize("on_doubt", [OnDoubt.HOLD, OnDoubt.SKIP])
def test_ten_unknown_outcomes_in_a_row_stop_the_pipeline(on_doubt: OnDoubt) -> None:
    world = world_of(Post(), on_doubt=on_doubt)
    world.out.always = lost
    names = " ".join(f"{chr(97 + at)}{at}" for at in range(26))
    with pytest.raises(HeldInDoubt, match="in a row"):
        world.minibatch(0, names)
    assert len(world.out.effects) <= 11
    assert len(world.parked()) <= 11


def test_an_answer_in_between_starts_the_count_anew() -> None:
    world = world_of(Post())
    world.out.plan(*[*[lost] * 9, fine, *[lost] * 9])
    names = " ".join(f"{chr(97 + at)}{at}" for at in range(20))
    world.minibatch(0, names)
    assert len(world.out.effects) == 20
    assert len(world.parked()) == 18


@pytest.mark.parametrize("kind", KINDS)
def test_park_limit_stops_the_pipeline(kind: str) -> None:
    world = world_like(kind, chunk_rows=1, park_limit=2)
    world.out.refuses.update({"a1", "b2", "c3", "d4"})
    with pytest.raises(HeldInDoubt, match="park_limit") as stopped:
        world.minibatch(0, INPUT)
    assert world.parked() == ["a1 rejected", "b2 rejected"]
    said = str(stopped.value)
    assert "2 events are parked and 1 more must be (the first is event 3 of 'c': " in said
    assert "or raise park_limit to 3 or more" in said


# -- a destination that is down


@pytest.mark.parametrize("kind", KINDS)
def test_a_destination_that_is_down_fails_the_task_and_parks_nothing(kind: str) -> None:
    world = world_like(kind, chunk_rows=2, retry=Retry(1.0, 8.0, 30.0))
    world.out.always = away
    opening = world.open(0)
    with pytest.raises(NotDelivered):
        world.task(opening, INPUT)
    assert world.parked() == []
    pauses = world.clock.slept
    assert len(pauses) >= 4
    assert sum(pauses) >= 20
    assert pauses[1] > pauses[0]
    world.out.always = fine
    world.driver.end(opening, world.task(opening, INPUT))
    assert once(world.out.seen) == INPUT
    assert world.parked() == []


def test_an_opaque_destination_that_is_down_leaves_nothing_in_doubt() -> None:
    world = world_of(Post(), window=3)
    world.out.plan(fine, fine, fine, fine)
    world.out.always = away
    opening = world.open(0)
    with pytest.raises(NotDelivered):
        world.task(opening, INPUT)
    assert [span.state.value for span in world.spans()] == ["settled"] * len(world.spans())
    assert world.out.seen == "a1 b2 c3 d4"


def test_without_taking_the_intent_back_it_would_be_in_doubt() -> None:
    world = world_of(Post(), window=3)
    world.store.forgets = lambda each: isinstance(each, Delete) and each.key.table == "events"
    world.out.always = away
    opening = world.open(0)
    with pytest.raises(NotDelivered):
        world.task(opening, INPUT)
    world.out.always = fine
    world.task(opening, INPUT)
    assert world.parked() == ["a1 held", "b2 held", "c3 held"]


def test_one_event_that_is_never_taken_now_is_tried_with_pauses_not_in_a_loop() -> None:
    world = world_of(Post(), window=3, retry=Retry(1.0, 8.0, 30.0))
    tries: list[float] = []

    def busy(event: Any) -> None:
        if event.id == 2:
            tries.append(world.clock.now)
            raise NotDelivered("busy")
        world.out.accept(event)

    object.__setattr__(world.sinks[0], "function", busy)
    opening = world.open(0)
    with pytest.raises(NotDelivered):
        world.task(opening, INPUT)
    assert world.out.seen == "a1"
    assert len(tries) < 100
    assert tries[-1] - tries[0] >= 20
    assert world.parked() == []


def test_what_the_destination_asks_for_is_waited() -> None:
    world = world_of(Post())

    def later(act: Any) -> Any:
        raise NotDelivered("429", retry_after_s=17.0)

    world.out.plan(later)
    world.minibatch(0, "a1")
    assert max(world.clock.slept) == 17.0
    assert world.out.seen == "a1"


def test_events_that_are_told_apart_are_each_judged_on_their_own() -> None:
    world = world_of(Couriers(), chunk_rows=4)
    world.out.plan(away, fine, lost, fine)
    world.minibatch(0, "a1 b2 c3 d4")
    assert once(world.out.seen) == "a1 b2 c3 d4"
    assert world.out.calls == [["a1"], ["b2"], ["c3"], ["d4"], ["a1"]]
    assert world.parked() == ["c3 held"]


def test_what_was_delivered_beside_an_event_that_was_not_is_not_sent_again() -> None:
    world = world_of(Couriers(), chunk_rows=3, retry=Retry(1.0, 8.0, 30.0))
    world.out.plan(away, fine, fine)
    world.out.always = away
    opening = world.open(0)
    with pytest.raises(NotDelivered):
        world.task(opening, "a1 b2 c3")
    world.out.always = fine
    world.driver.end(opening, world.task(opening, "a1 b2 c3"))
    seen = world.out.seen.split()
    assert len(seen) == len(set(seen))
    assert {*seen, *(each.split()[0] for each in world.parked())} == {"a1", "b2", "c3"}


# -- a destination that is down while others wait


def down_with_a_follower() -> tuple[World, Any]:
    """a1 is held; a2 was parked behind it, and then b3 met a destination that is down."""
    world = world_of(Post(), window=2, retry=Retry(1.0, 8.0, 30.0))
    world.out.plan(lost)
    world.minibatch(0, "a1")
    opening = world.open(1)
    world.out.always = away
    with pytest.raises(NotDelivered):
        world.task(opening, "a2 b3")
    assert world.parked() == ["a1 held", "a2 waiting"]
    world.out.always = fine
    return world, opening


def test_a_follower_that_is_parked_stays_parked_when_the_task_is_tried_again() -> None:
    world, opening = down_with_a_follower()
    world.driver.end(opening, world.task(opening, "a2 b3"))
    assert world.out.seen == "a1 b3"
    assert world.parked() == ["a1 held", "a2 waiting"]


def test_a_follower_that_was_drained_meanwhile_is_not_sent_again() -> None:
    world, opening = down_with_a_follower()
    world.resolve("a1", "delivered")
    world.driver.drain()
    assert world.out.seen == "a1 a2"
    world.driver.end(opening, world.task(opening, "a2 b3"))
    assert world.out.seen == "a1 a2 b3"


# -- a transaction that has passed single events


class Busy(Database):
    """Takes the good events of a chunk, and reports the others with the outcome it is given."""

    why: DeliveryError = NotDelivered("busy")

    def refused(self, chunk: Chunk) -> dict[int, Any]:
        return dict.fromkeys(super().refused(chunk), self.why)


@pytest.mark.parametrize("identity", [GIVEN, POSITION], ids=["given", "position"])
def test_what_a_transaction_did_not_deliver_is_sent_again_by_itself(identity: Identity) -> None:
    world = world_of(Busy(one_script=True), identity, chunk_rows=3)
    world.out.refuses.add("a2")
    world.minibatch(0, "a1 a2 b3 a4")
    waits = ["a4 waiting"] if identity is GIVEN else []
    assert world.parked() == ["a2 resend", *waits]
    world.out.refuses.clear()
    world.minibatch(1, "a5 b6")
    delivered = "a1 b3 a2 a4 a5 b6" if identity is GIVEN else "a1 b3 a4 a2 a5 b6"
    assert world.out.seen == delivered
    assert {each.split()[1] for each in world.parked()} == {"delivered"}


def test_what_a_transaction_does_not_know_is_held() -> None:
    world = world_of(Busy(one_script=True))
    world.out.why = OutcomeUnknown("who knows")
    world.out.refuses.add("a2")
    world.minibatch(0, "a1 a2 b3")
    world.minibatch(1, "a4")
    assert world.parked() == ["a2 held", "a4 waiting"]
    world.resolve("a2", "delivered")
    world.minibatch(2, "a5")
    assert world.out.seen == "a1 b3 a4 a5"

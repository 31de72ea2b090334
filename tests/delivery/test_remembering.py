"""A repeat that would come when the destination may have forgotten its key is not made."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from semel.delivery.parking.resend import Resending
from semel.errors import NotDelivered, OutcomeUnknown, SemelError
from semel.protocol import OnDoubt, OnReject
from semel.sinks import Retry
from semel.verify.models import SeenKeys
from support.destinations import Absorber, Crash, Reply, away, crash_after, fine, lost
from support.pipeline import World, world_of

REMEMBERS_S = 120.0  # as NATS JetStream has it by default; SQS has five minutes


def short_memory(**settings: Any) -> World:
    absorber = Absorber(keys=SeenKeys(REMEMBERS_S))
    return world_of(absorber, remembers_s=REMEMBERS_S, chunk_rows=1, **settings)


PATIENT = Retry(for_s=100 * REMEMBERS_S)


def taken_and_lost(world: World, seconds: float) -> Reply:
    """It arrived, and the answer did not come for so long."""

    def reply(act: Callable[[], Any]) -> Any:
        act()
        world.clock.move(seconds)
        raise OutcomeUnknown("no answer within the deadline")

    return reply


def busy_for(world: World, seconds: float) -> Reply:
    """It surely did not arrive, and that took so long."""

    def reply(act: Callable[[], Any]) -> Any:
        world.clock.move(seconds)
        raise NotDelivered("busy")

    return reply


def resend(world: World, name: str) -> int:
    return Resending(world.client, world.sinks[0], world.process(name), world.runtime).drain()


def test_a_chunk_is_not_repeated_for_longer_than_its_key_is_remembered() -> None:
    world = short_memory(retry=PATIENT)
    world.out.plan(*[taken_and_lost(world, world.sinks[0].deadline_s)] * 6)
    world.minibatch(0, "a1")
    assert world.out.seen == "a1"
    assert len(world.out.calls) > 1, "while the key is remembered it is repeated"
    assert world.parked() == ["a1 held"]


def test_a_chunk_whose_sender_slept_for_longer_than_its_key_is_remembered_is_not_repeated() -> None:
    world = short_memory()
    world.out.plan(taken_and_lost(world, REMEMBERS_S + 1.0))
    world.minibatch(0, "a1")
    assert world.out.seen == "a1"
    assert world.parked() == ["a1 held"]


def test_a_repeat_that_waits_for_a_busy_destination_looks_at_the_clock_again() -> None:
    world = short_memory(retry=PATIENT)
    world.out.plan(lost, busy_for(world, REMEMBERS_S))
    world.minibatch(0, "a1")
    assert world.out.seen == "a1"
    assert world.parked() == ["a1 held"]


def test_what_was_never_sent_may_be_sent_at_any_age() -> None:
    world = short_memory(retry=PATIENT)
    world.out.plan(busy_for(world, REMEMBERS_S), away)
    world.minibatch(0, "a1")
    assert world.out.seen == "a1"
    assert world.parked() == []


@pytest.mark.parametrize("policy", [OnDoubt.HOLD, OnDoubt.RESEND])
def test_a_resumed_span_is_in_doubt_from_where_its_keys_are_forgotten(policy: OnDoubt) -> None:
    world = short_memory(on_doubt=policy)
    opening = world.open(0)
    world.out.plan(fine, crash_after)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2 c3")
    world.out.plan(taken_and_lost(world, REMEMBERS_S))
    world.driver.end(opening, world.task(opening, "a1 b2 c3"))
    if policy is OnDoubt.HOLD:
        assert world.out.seen == "a1 b2"
        assert world.parked() == ["a1 held", "b2 held", "c3 held"]
    else:
        assert world.out.seen == "a1 b2 a1 b2 c3", "the policy wants it sent again"


def parked_to_resend() -> World:
    world = short_memory(on_reject=OnReject.BLOCK)
    world.out.refuses.add("a1")
    world.minibatch(0, "a1")
    world.out.refuses.clear()
    world.resolve("a1", "resend")
    return world


def test_a_resend_is_not_repeated_for_longer_than_its_key_is_remembered() -> None:
    world = parked_to_resend()
    world.out.plan(*[taken_and_lost(world, world.sinks[0].deadline_s)] * 6)
    resend(world, "sender")
    assert world.out.seen == "a1"
    assert world.parked() == ["a1 held"]


def test_a_resend_that_was_lost_and_then_refused_for_a_while_keeps_its_age() -> None:
    world = parked_to_resend()
    world.out.plan(lost)
    world.out.always = away
    with suppress(SemelError):
        resend(world, "sender")
    assert world.parked() == ["a1 sending"], "it may have arrived, so nobody forgets since when"
    world.out.always = fine
    world.clock.move(REMEMBERS_S)
    resend(world, "another")
    assert world.out.seen == "a1"
    assert world.parked() == ["a1 held"]

"""A repeat that comes when the destination has forgotten its key."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from delivery.witnesses import Absorber
from delivery.world import world_of
from semel.errors import OutcomeUnknown, SemelError

REMEMBERS_S = 120.0  # as NATS JetStream has it by default; SQS has five minutes


def test_a_chunk_is_not_repeated_for_longer_than_its_key_is_remembered() -> None:
    world = world_of(Absorber(remembers_s=REMEMBERS_S), remembers_s=REMEMBERS_S, chunk_rows=1)

    def taken_and_not_answered(act: Callable[[], Any]) -> Any:
        act()
        world.clock.move(world.sinks[0].deadline_s)
        raise OutcomeUnknown("no answer within the deadline")

    world.out.plan(*[taken_and_not_answered] * 6)
    with suppress(SemelError):
        world.minibatch(0, "a1")
    assert world.out.seen == "a1"


def test_a_chunk_whose_sender_slept_for_longer_than_its_key_is_remembered_is_not_repeated() -> None:
    world = world_of(Absorber(remembers_s=REMEMBERS_S), remembers_s=REMEMBERS_S, chunk_rows=1)

    def sleeps(act: Callable[[], Any]) -> Any:
        act()
        world.clock.move(REMEMBERS_S + 1.0)
        raise OutcomeUnknown("the connection was gone when it woke up")

    world.out.plan(sleeps)
    with suppress(SemelError):
        world.minibatch(0, "a1")
    assert world.out.seen == "a1"

"""Held events that are not read for every minibatch: nothing that is free to go is overlooked."""

from __future__ import annotations

from random import Random

import pytest

from semel.delivery.parking.resend import Resending
from semel.errors import ConfigurationError, HeldInDoubt, OutcomeUnknown, Rejected
from semel.protocol import OnReject
from support.destinations import Reply, fine, lost_on_the_way
from support.pipeline import EXACT, World, world_like


def refused(_: object) -> None:
    raise Rejected("no")


def unknown(_: object) -> None:
    raise OutcomeUnknown("no answer")


REPLIES: tuple[Reply, ...] = (fine, fine, fine, refused, unknown, lost_on_the_way)


def fresh_drain(world: World, name: str) -> int:
    """Drain as another process does, which has read nothing before."""
    process, runtime = world.process(name), world.driver.runtime
    return sum(
        Resending(world.client, sink, process, runtime, waits=True).drain() for sink in world.sinks
    )


@pytest.mark.parametrize("kind", ["opaque", *(each for each in EXACT if "sequenced" not in each)])
@pytest.mark.parametrize("seed", range(12))
def test_after_a_drain_another_process_finds_nothing_to_send(kind: str, seed: int) -> None:
    random = Random(f"{kind} {seed}")
    world = world_like(kind, on_reject=random.choice(list(OnReject)))
    number = 0
    for batch in range(8):
        world.out.always = fine
        names = []
        for _ in range(random.randrange(1, 6)):
            number += 1
            names.append(f"{random.choice('abc')}{number}")
        world.out.plan(*random.choices(REPLIES[:5], k=len(names)))
        try:
            world.minibatch(batch, " ".join(names))
        except (HeldInDoubt, OutcomeUnknown, ConfigurationError):
            return  # the query stopped; a start reads everything again
        for _ in range(random.randrange(4)):
            waiting = [
                world._name(row)
                for _, row in world.parked_rows()
                if row.state.value in ("held", "rejected")
            ]
            if waiting:
                decision = random.choice(["delivered", "resend", "resend", "discarded"])
                world.resolve(random.choice(waiting), decision)
            if random.random() < 0.3:
                world.out.script.clear()
                world.out.plan(*random.choices(REPLIES, k=2))
                fresh_drain(world, f"other-{number}")
            world.out.script.clear()
            world.out.plan(*random.choices(REPLIES[:4], k=2))
            world.driver.drain(waits=True)
            world.out.script.clear()
            world.out.always = fine
            assert world.driver.drain(waits=True) >= 0
            assert fresh_drain(world, f"check-{number}") == 0, (kind, seed, world.parked())

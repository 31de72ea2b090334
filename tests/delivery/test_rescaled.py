"""The number of partitions changes while a run is silent, there and back, and after the end."""

from __future__ import annotations

import pytest

from delivery.witnesses import Database
from delivery.world import COUNTER, GIVEN, World
from semel.errors import ConfigurationError
from semel.events import Identity
from semel.ledger.rescaling import rescale


def made(identity: Identity) -> World:
    """A pipeline of one partition."""
    world = World(identity, partition="0of1", partitions=1)
    world.add(Database())
    world.start()
    return world


@pytest.mark.parametrize("identity", [COUNTER, GIVEN], ids=["counter", "given"])
@pytest.mark.parametrize("registered", [False, True])
def test_a_run_that_was_silent_while_it_was_rescaled_cannot_go_on_with_the_old_partitions(
    identity: Identity, registered: bool
) -> None:
    world = made(identity)
    world.minibatch(0, "a1 a2")
    if registered:
        world.start()
    rescale(world.scribe, 2)
    with pytest.raises(ConfigurationError, match="rescaled to 2 partitions, and this run has 1"):
        world.minibatch(1, "a3 a4")
    assert world.out.seen == "a1 a2"


def test_rescaling_a_finished_batch_says_what_it_is() -> None:
    world = made(GIVEN)
    opening = world.open(0, "batch")
    world.driver.end(opening, world.task(opening, "a1"))
    world.driver.finish(opening)
    with pytest.raises(ConfigurationError, match="a batch that is finished"):
        rescale(world.scribe, 2)

"""How much of a ledger a pipeline costs that is configured as the README does it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from random import Random

import pytest

from semel.delivery.driver import PRUNE_EVERY
from semel.events import Identity
from semel.ledger.inspect.ledger import TABLES
from semel.ledger.verbs.pruning import REMEMBER_S
from support.destinations import Post
from support.pipeline import GIVEN, INCREASING, World, world_of

EVENTS = 10
CUSTOMERS = "abcde"
BYTES_PER_ID_MAX = 64
"""What the README's configuration remembers of one event, at most: its id, and its part of what a
minibatch keeps."""


def size(world: World) -> int:
    return sum(world.store.size(table)[1] for table in TABLES)


def payments(world: World, ids: Iterator[int], minibatches: int) -> list[int]:
    """Deliver minibatches of payments, one second apart; give the size of the ledger after each."""
    sizes = []
    first = world.opened().minibatch.batch + 1 if list(world.store.memory.scan("open", "")) else 0
    for batch in range(first, first + minibatches):
        world.clock.move(1.0)
        numbers = sorted(next(ids) for _ in range(EVENTS))
        names = (
            f"{CUSTOMERS[at % len(CUSTOMERS)]}{each}"
            for at, each in enumerate(numbers, batch * EVENTS)
        )
        world.minibatch(batch, " ".join(names))
        sizes.append(size(world))
    return sizes


def random_ids(seed: int = 7) -> Iterator[int]:
    """Ids that follow no order, as those of a payment provider."""
    random = Random(seed)
    while True:
        yield random.getrandbits(48)


def charges(identity: Identity) -> World:
    """The sink and the identity of the README."""
    return world_of(Post(), identity, window=1)


@pytest.mark.rows("N12")
def test_ids_that_are_not_increasing_are_remembered_in_a_few_bytes_each_and_then_forgotten() -> (
    None
):
    world, ids = charges(GIVEN), random_ids()
    sizes = payments(world, ids, 80)
    per_event = (sizes[-1] - sizes[19]) / (60 * EVENTS)
    assert 6 <= per_event <= BYTES_PER_ID_MAX  # it grows: the docs say so
    bound = 2 * PRUNE_EVERY * EVENTS * BYTES_PER_ID_MAX + 10_000
    ends = []
    for _ in range(2):
        world.clock.move(2 * REMEMBER_S)
        ends.append(payments(world, ids, PRUNE_EVERY)[-1])
    assert max(ends) < bound
    assert ends[1] < ends[0] * 1.1  # what is older than remember_s is gone


@pytest.mark.rows("N12")
def test_increasing_ids_cost_memory_for_entities_and_not_for_events() -> None:
    world, ids = charges(INCREASING), count(1)
    sizes = payments(world, ids, 300)
    few, many = max(sizes[:150]), max(sizes[150:])  # twice the events of the same customers
    assert many <= few * 1.05

"""A ledger that was lost under a checkpoint: when it is noticed, and when it cannot be.

docs/failures.md, "The ledger is lost, or restored from a copy", says what is shown here.
"""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy

import pytest

from semel.errors import ConfigurationError, Diverged, NotDelivered, SemelError
from semel.ledger.client import LedgerClient
from semel.verify.simulator.cluster import MemoryStore
from support.pipeline import KINDS, World, world_like

UNKNOWN = "the checkpoint is at batch 2, and the ledger does not know this pipeline"


def lose_ledger(world: World) -> None:
    """An empty ledger stands where the old one was, and the query is started again."""
    world.store.memory = MemoryStore()
    world.client = LedgerClient(world.store, world.name, world.clock)
    world.start()


def delivered(kind: str, batches: int) -> World:
    """A pipeline of which a second run has completed so many minibatches."""
    world = world_like(kind)
    world.start()
    for batch in range(batches):
        world.minibatch(batch, f"a{2 * batch} b{2 * batch + 1}")
    return world


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_ledger_is_noticed_when_the_checkpoint_is_past_its_first_batch(kind: str) -> None:
    world = delivered(kind, 2)
    before = list(world.out.effects)
    lose_ledger(world)
    with pytest.raises(ConfigurationError, match=UNKNOWN):
        world.open(2)
    assert world.out.effects == before


def test_it_is_not_noticed_with_accept_gap_left_in_the_code() -> None:
    world = delivered("opaque", 2)
    lose_ledger(world)
    world.driver.accept_gap = True
    world.minibatch(2, "a4 b5", accept_gap=True)
    assert len(world.out.effects) == 6


@pytest.mark.parametrize("kind", ["opaque", "probing"])
def test_a_first_batch_that_is_replayed_is_delivered_again(kind: str) -> None:
    world = delivered(kind, 1)
    lose_ledger(world)
    world.minibatch(0, "a0 b1")
    assert len(world.out.effects) == 4


def test_a_destination_that_absorbs_repeats_absorbs_them_then() -> None:
    world = delivered("repeatable", 1)
    lose_ledger(world)
    world.minibatch(0, "a0 b1")
    assert len(world.out.effects) == 2


def test_a_progress_row_of_a_later_run_lets_nothing_through_then() -> None:
    world = delivered("transactional", 1)
    lose_ledger(world)
    with pytest.raises(NotDelivered):
        world.minibatch(0, "a0 b1")
    assert len(world.out.effects) == 2


def test_a_log_tells_what_it_has_then() -> None:
    world = delivered("sequenced", 1)
    lose_ledger(world)
    [report] = world.minibatch(0, "a0 b1")
    assert (report.count, len(world.out.effects)) == (2, 2)


def test_a_copy_that_lacks_the_minibatch_before_is_noticed() -> None:
    world = delivered("opaque", 1)
    opening = world.open(1)
    copied = deepcopy(world.store.memory)
    world.driver.end(opening, world.task(opening, "a2 b3"))
    world.store.memory = copied
    world.start()
    with pytest.raises(Diverged):
        world.open(2)


@pytest.mark.parametrize("kind", ["transactional", "sequenced"])
@pytest.mark.parametrize("cut", [["a0 b1 a2 b3"], ["a0", "b1 a2 b3"], ["a0 b1", "a2 b3"]])
@pytest.mark.parametrize("runs", [1, 2])
def test_a_destination_that_knows_takes_nothing_twice_when_the_checkpoint_is_lost_too(
    kind: str, cut: list[str], runs: int
) -> None:
    world = world_like(kind)
    for _ in range(runs - 1):
        world.start()
    for batch in range(2):
        world.minibatch(batch, f"a{2 * batch} b{2 * batch + 1}")
    before = list(world.out.effects)
    lose_ledger(world)
    with suppress(SemelError):
        for batch, text in enumerate(cut):
            world.minibatch(batch, text, "another query")
    assert world.out.effects == before

"""A source partition that never came to the end of its first minibatch still knows its start."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from semel.errors import Diverged, NotDelivered, Rejected
from semel.ledger.verbs.complete import read_sequences
from semel.ledger.verbs.open_checks import positions
from semel.protocol import OnReject
from semel.sinks import Receipt
from support.destinations import Crash, crash
from support.pipeline import ORDERED_POSITION, POSITION, world_like

EXACT = ["repeatable", "transactional", "sequenced", "probing"]


@pytest.mark.parametrize("kind", EXACT)
def test_the_first_minibatch_claimed_and_lost_with_its_checkpoint_is_a_gap(kind: str) -> None:
    world = world_like(kind, POSITION)
    opening = world.open(0)
    world.out.plan(crash)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2 a3")
    world.start()
    opening = world.driver.begin("q2", 0, {"t/0": 100})
    with pytest.raises(Diverged, match=r"""startingOffsets', '{"t": {"0": 1}}'"""):
        world.task(opening, "a100 b101")
    assert world.out.seen == ""
    world.start()
    world.minibatch(0, "a1 b2 a3", "q2")
    assert world.out.seen == "a1 b2 a3"


def test_an_event_before_the_first_that_was_parked_is_not_left_out() -> None:
    world = world_like("repeatable", ORDERED_POSITION, on_reject=OnReject.BLOCK, chunk_rows=10)
    opening = world.open(0)

    def part(act: Callable[[], object]) -> Receipt:
        del act
        busy = NotDelivered("busy")
        return Receipt(failures={0: busy, 1: Rejected("bad"), 2: busy})

    world.out.plan(part, crash)
    with pytest.raises(Crash):
        world.task(opening, "b1 a2 a3")
    world.start()
    opening = world.open(0, "q2")
    with pytest.raises(Diverged, match=r'"0": 1}'):
        world.task(opening, "b10")
    assert positions([read_sequences(world.client, "out")]) == {"t/0": 1}

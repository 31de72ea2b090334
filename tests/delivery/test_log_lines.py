"""What the log says at the end of a minibatch: delivered, parked and dropped are counted apart."""

from __future__ import annotations

import logging

import pytest

from semel.protocol import OnDoubt, OnReject
from support.destinations import Post, lost
from support.pipeline import World, world_of

INPUT = "a1 a2 b3 b4 c5 c6"
PARKED = (
    "not sent again and not delivered, because an earlier attempt parked them (list them with "
    "`semel parked ls`): "
)
OTHERS = "parked for another reason, or behind a parked event (list them with `semel parked ls`): "


def said(world: World, caplog: pytest.LogCaptureFixture, batch: int = 0) -> list[str]:
    """Deliver a minibatch and log it; give the lines without their place."""
    opening = world.open(batch)
    reports = world.task(opening, INPUT)
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="semel"):
        world.driver.end(opening, reports)
    place = f"pipeline 'pay', minibatch {opening.row.minibatch}: events "
    return [each.getMessage().removeprefix(place) for each in caplog.records]


def test_what_was_parked_is_never_said_to_be_delivered(caplog: pytest.LogCaptureFixture) -> None:
    world = world_of(Post(), on_reject=OnReject.BLOCK)
    world.out.refuses.update({"a1", "b3", "c5"})
    first = said(world, caplog)
    assert first == [f"{OTHERS}6"]
    world.start()
    assert said(world, caplog) == [f"{PARKED}6"]


def test_delivered_and_in_doubt_are_counted_apart(caplog: pytest.LogCaptureFixture) -> None:
    world = world_of(Post())
    world.out.plan(lost)
    assert said(world, caplog) == [
        "parked in doubt (list them with `semel parked ls`): 1",
        f"{OTHERS}1",
    ]
    world.start()
    assert said(world, caplog) == [
        "not sent again, because an earlier attempt delivered them: 4",
        f"{PARKED}2",
    ]


def test_what_policy_skip_dropped_is_neither_delivered_nor_parked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = world_of(Post(), on_doubt=OnDoubt.SKIP)
    world.out.plan(lost)
    assert said(world, caplog) == [
        "in doubt and dropped (on_doubt='skip'): they may not have arrived: 1"
    ]
    world.start()
    assert said(world, caplog) == [
        "not sent again, because an earlier attempt delivered them: 5",
        "not sent again, because an earlier attempt dropped them in doubt (on_doubt='skip'): 1",
    ]

"""Two sinks, of which one fails: what the other one acknowledged is known, and stays known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from semel.errors import LedgerUnavailable, NotDelivered
from semel.events import Identity
from semel.protocol import OnDoubt
from support.destinations import Absorber, Crash, Post, away, crash, fine, lost
from support.pipeline import GIVEN, POSITION, World, reply_lost


def two(identity: Identity = GIVEN, policy: OnDoubt = OnDoubt.HOLD) -> World:
    world = World(identity)
    world.add(Post(), "mail", on_doubt=policy)
    world.add(Post(), "hook")
    world.start()
    return world


@pytest.mark.parametrize("identity", [GIVEN, POSITION], ids=["given", "position"])
@pytest.mark.parametrize("policy", [OnDoubt.RESEND, OnDoubt.HOLD, OnDoubt.STOP])
def test_what_one_sink_acknowledged_is_not_in_doubt_because_another_is_down(
    policy: OnDoubt, identity: Identity
) -> None:
    world = two(identity, policy)
    world.destinations["hook"].always = away
    opening = world.open(0)
    for _ in range(4):  # Spark tries a task four times
        with pytest.raises(NotDelivered):
            world.task(opening, "a1 b2")
    world.destinations["hook"].always = fine
    world.driver.end(opening, world.task(opening, "a1 b2"))
    assert (world.destinations["mail"].seen, world.parked("mail")) == ("a1 b2", [])
    assert (world.destinations["hook"].seen, world.parked("hook")) == ("a1 b2", [])


def test_what_nobody_acknowledged_stays_in_doubt_when_another_sink_is_down() -> None:
    world = two()
    world.destinations["mail"].plan(fine, lost)
    world.destinations["hook"].always = away
    opening = world.open(0)
    with pytest.raises(NotDelivered):
        world.task(opening, "a1 b2")
    world.destinations["hook"].always = fine
    world.driver.end(opening, world.task(opening, "a1 b2"))
    assert world.parked("mail") == ["b2 held"]


def test_a_crash_settles_nothing() -> None:
    world = two()
    world.destinations["hook"].plan(crash)
    opening = world.open(0)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2")
    world.driver.end(opening, world.task(opening, "a1 b2"))
    assert world.destinations["mail"].seen == "a1 b2"
    assert world.parked("mail") == ["b2 held"]


def unavailable(act: Callable[[], Any]) -> Any:
    raise LedgerUnavailable("no ledger")


@pytest.mark.parametrize("reply", [unavailable, reply_lost])
def test_a_ledger_that_fails_meanwhile_does_not_hide_the_first_error(
    reply: Callable[[Callable[[], Any]], Any],
) -> None:
    world = World(GIVEN)
    world.add(Post(), "mail")
    world.add(Absorber(), "hook")
    world.start()
    opening = world.open(0)

    def down(act: Callable[[], Any]) -> Any:
        world.store.script.extend([reply] * 50)
        raise NotDelivered("the hook is down")

    world.destinations["hook"].always = down
    with pytest.raises(NotDelivered, match="the hook is down"):
        world.task(opening, "a1 b2")
    assert world.destinations["mail"].seen == "a1 b2"

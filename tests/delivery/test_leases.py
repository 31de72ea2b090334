"""Lease and wait: only where the destination cannot fence, and there always."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from semel.errors import Fenced, HeldInDoubt
from semel.protocol import OnDoubt
from support.destinations import Crash, Post, Register, before, crash, crash_after
from support.pipeline import KINDS, StillClock, World, once, world_like, world_of

LEASE, DEADLINE = 10.0, 30.0


class DiesWhenItWaits(StillClock):
    def sleep(self, seconds: float) -> None:
        raise Crash


def in_flight(world: World, lands_after: float) -> Callable[..., Any]:
    """The caller dies, and its call takes effect only later."""

    def reply(act: Callable[[], Any]) -> Any:
        world.clock.later(lands_after, act)
        raise Crash

    return reply


def taken_over(world: World, reply: Any, text: str = "a1 b2") -> None:
    """One attempt dies in its first call; another one comes."""
    opening = world.open(0)
    world.out.plan(reply)
    with pytest.raises(Crash):
        world.task(opening, text)
    world.clock.slept.clear()
    world.driver.end(opening, world.task(opening, text))


@pytest.mark.parametrize("lands_after", [0.0, 15.0, 29.0])
def test_probing_waits_until_no_call_can_be_in_flight_before_it_asks(lands_after: float) -> None:
    world = world_of(Register(), lease_s=LEASE, deadline_s=DEADLINE)
    taken_over(world, in_flight(world, lands_after))
    assert world.clock.slept == [LEASE + DEADLINE]
    assert world.out.seen == "a1 b2"


def test_a_shorter_deadline_does_not_cut_short_what_an_attempt_from_before_may_take() -> None:
    """One that came in between has the shorter deadline, and ended before it had waited."""
    world = world_of(Register(), lease_s=LEASE, deadline_s=300.0)
    opening = world.open(0)
    world.out.plan(in_flight(world, 200.0))
    with pytest.raises(Crash):
        world.task(opening, "a1 b2")
    world.sinks[0] = replace(world.sinks[0], deadline_s=DEADLINE)
    world.start()
    with pytest.raises(Crash):
        world.task(world.open(0), "a1 b2", clock=DiesWhenItWaits())
    world.clock.slept.clear()
    world.minibatch(0, "a1 b2")
    world.clock.move(1_000)
    assert world.clock.slept == [LEASE + 300.0]
    assert world.out.seen == "a1 b2"


def test_without_the_wait_the_late_call_and_the_repeat_would_both_arrive() -> None:
    world = world_of(Register(), lease_s=0.0, deadline_s=0.0)  # a sink that says less than is true
    taken_over(world, in_flight(world, 15.0))
    world.clock.move(60)
    assert once(world.out.seen) == "a1 a1 b2 b2"


@pytest.mark.rows("A9", "A13")
def test_a_key_that_is_there_is_only_completed_and_one_that_is_not_is_sent() -> None:
    for reply, asked in [(crash_after, 1), (crash, 1)]:
        world = world_of(Register(), chunk_rows=2)
        taken_over(world, reply)
        assert world.out.seen == "a1 b2"
        assert len(world.out.asked) == asked


@pytest.mark.rows("A14", "S21")
def test_a_function_that_is_asked_waits_before_it_is() -> None:
    asked: list[float] = []
    world = World()

    def arrived(event: Any) -> bool:
        asked.append(world.clock.now)
        return event.id in [effect.event for effect in world.out.effects]

    world.add(Post(), on_doubt=OnDoubt.PROBE, probe=arrived, lease_s=LEASE, deadline_s=DEADLINE)
    world.start()
    taken_over(world, in_flight(world, 29.0))
    assert asked == [1_000.0 + LEASE + DEADLINE]
    assert world.out.seen == "a1 b2"
    assert world.parked() == []


def test_resend_waits_too_so_that_it_does_not_overtake_the_first_call() -> None:
    world = world_of(Post(), on_doubt=OnDoubt.RESEND, lease_s=LEASE, deadline_s=DEADLINE)
    taken_over(world, in_flight(world, 29.0))
    assert world.clock.slept == [LEASE + DEADLINE]
    assert world.out.seen == "a1 a1 b2"
    assert world.out.effects[1].at >= world.out.effects[0].at


@pytest.mark.parametrize("policy", [OnDoubt.HOLD, OnDoubt.SKIP, OnDoubt.STOP])
def test_hold_skip_and_stop_never_wait(policy: OnDoubt) -> None:
    world = world_of(Post(), on_doubt=policy)
    opening = world.open(0)
    world.out.plan(crash)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2")
    if policy is OnDoubt.STOP:
        with pytest.raises(HeldInDoubt):
            world.task(opening, "a1 b2")
    else:
        world.task(opening, "a1 b2")
    assert world.clock.slept == []


@pytest.mark.parametrize("kind", ["transactional", "sequenced", "repeatable"])
@pytest.mark.parametrize("reply", [crash, crash_after])
def test_a_destination_that_fences_or_absorbs_never_makes_anybody_wait(
    kind: str, reply: Any
) -> None:
    world = world_like(kind)
    taken_over(world, reply)
    assert world.clock.slept == []
    assert world.out.seen == "a1 b2"


# -- whom one waits for


def test_a_process_that_is_gone_and_was_first_saves_the_lease_never_the_deadline() -> None:
    world = world_of(Register(), lease_s=LEASE, deadline_s=DEADLINE)
    world.gone.add(world.process("task-1"))
    taken_over(world, in_flight(world, 29.0))
    assert world.clock.slept == [DEADLINE]
    assert world.out.seen == "a1 b2"


def test_a_process_that_is_gone_but_had_not_waited_itself_saves_nothing() -> None:
    world = world_of(Register(), lease_s=LEASE, deadline_s=DEADLINE)
    opening = world.open(0)
    world.out.plan(in_flight(world, LEASE + 15.0))  # of a process that is not known to be gone
    with pytest.raises(Crash):
        world.task(opening, "a1 b2")

    def dies() -> None:
        raise Crash

    world.clock.later(1.0, dies)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2")  # dies while it waits
    world.gone.add(world.process("task-2"))
    world.clock.slept.clear()
    world.driver.end(opening, world.task(opening, "a1 b2"))
    assert world.clock.slept == [LEASE + DEADLINE]
    assert world.out.seen == "a1 b2"


def test_a_new_run_waits_for_an_older_one_unless_its_driver_has() -> None:
    for waited, slept in [(False, [LEASE + DEADLINE]), (True, [])]:
        world = world_of(Register(), lease_s=LEASE, deadline_s=DEADLINE)
        opening = world.open(0)
        world.out.plan(crash_after)
        with pytest.raises(Crash):
            world.task(opening, "a1 b2")
        world.start()
        opening = world.open(0)
        world.clock.slept.clear()
        world.driver.end(opening, world.task(opening, "a1 b2", waited=waited))
        assert world.clock.slept == slept
        assert world.out.seen == "a1 b2"


# -- an effect starts only within the lease


def overtaken(world: World, pause_s: float) -> None:
    """After its first chunk an attempt stands still for a while, and is replaced meanwhile."""
    opening = world.open(0)
    done: list[Any] = []

    def replaced() -> None:
        world.clock.move(pause_s)
        done.append(world.task(opening, "a1 b2 c3", number=20))

    world.out.plan(before(replaced))
    with pytest.raises(Fenced):
        world.task(opening, "a1 b2 c3", number=10)
    world.driver.end(opening, done[0])


@pytest.mark.rows("S19")
def test_an_effect_does_not_start_after_the_lease_without_asking_the_ledger() -> None:
    world = world_of(Register(), chunk_rows=1, lease_s=LEASE, deadline_s=DEADLINE)
    overtaken(world, LEASE + 1)
    assert world.out.seen == "a1 b2 c3"


def test_without_a_lease_the_zombie_would_send_once_more() -> None:
    world = world_of(Register(), chunk_rows=1, lease_s=LEASE, deadline_s=DEADLINE)
    opening = world.open(0)

    def replaced() -> None:
        world.clock.move(LEASE + 1)
        world.task(opening, "a1 b2 c3", number=20)

    world.out.plan(before(replaced))
    with suppress(Fenced):  # it may learn so when it has done it
        world.task(opening, "a1 b2 c3", number=10, clock=StillClock())  # its clock stands still
    assert once(world.out.seen) == "a1 b2 b2 c3 c3"


def test_the_lease_counts_from_before_the_ledger_was_asked() -> None:
    world = world_of(Register(), chunk_rows=1, lease_s=LEASE, deadline_s=DEADLINE)
    opening = world.open(0)
    world.store.script.append(before(lambda: world.clock.move(LEASE + 1)))  # a slow answer
    reads = world.store.reads
    world.task(opening, "a1")
    assert world.store.reads > reads  # so it asked again before its first effect


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("opaque")])
def test_a_late_call_of_a_replaced_attempt_is_reported(kind: str) -> None:
    world = world_like(kind, lease_s=LEASE, deadline_s=DEADLINE)
    opening = world.open(0)

    def replaced() -> None:
        world.clock.move(LEASE + DEADLINE + 1)
        world.task(opening, "a1 b2", number=20)

    world.out.plan(before(replaced))
    with pytest.raises(Fenced):
        world.task(opening, "a1 b2", number=10)
    assert world.out.seen.count("a1") == 1
    assert "a1 held" in world.parked()

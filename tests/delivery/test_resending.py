"""Resend: what a person wants sent again keeps who it is, and is not sent twice by two senders."""

from __future__ import annotations

from typing import Any

import pytest

from semel.delivery import Runtime
from semel.delivery.parking import resend
from semel.delivery.parking.resend import Resending
from semel.errors import NotDelivered
from semel.events import Identity
from semel.ledger import ParkedRow
from semel.ledger.client import LedgerClient
from semel.ledger.store import Key
from semel.ledger.verbs.parked import Heads, read_heads, read_parked
from semel.protocol import OnDoubt, OnReject
from semel.sinks import Retry
from semel.verify.models import SeenKeys
from support.destinations import (
    Absorber,
    Crash,
    Post,
    after,
    before,
    crash_after,
    fine,
    lost,
    lost_on_the_way,
)
from support.pipeline import (
    GIVEN,
    KINDS,
    ORDERED_POSITION,
    POSITION,
    StillClock,
    World,
    crash_everywhere,
    world_like,
    world_of,
)

ALL = [kind for kind in KINDS if "batches" not in kind]
DRAINED = [kind for kind in ALL if not kind.startswith("sequenced")]
LEASE, DEADLINE = 10.0, 30.0

Parked = tuple[Key, ParkedRow, str]


def waiting(kind: str, identity: Identity = GIVEN, **settings: Any) -> World:
    """A world where a1 was rejected, may go now, and a3 waits behind it."""
    world = world_like(kind, identity, chunk_rows=1, on_reject=OnReject.BLOCK, **settings)
    world.out.refuses.add("a1")
    world.minibatch(0, "a1 b2 a3=9")
    world.out.refuses.clear()
    world.resolve("a1", "resend")
    assert world.out.seen == "b2"
    return world


def sender(world: World, name: str) -> Resending:
    """Whoever drains: the running pipeline, or a person at a terminal."""
    [sink] = world.sinks
    return Resending(world.client, sink, world.process(name), world.runtime)


def another(world: World) -> int:
    """Another process drains, after the one before had all the time that it may take."""
    world.clock.move(LEASE + DEADLINE + 1)
    return sender(world, "second").drain()


def drain(world: World) -> None:
    """Send what is free to go, as its capability has it."""
    if world.sinks[0].capability.value == "sequenced":
        opening = world.open(1)
        world.driver.end(opening, world.task(opening, "b4"))
    else:
        sender(world, "first").drain()


@pytest.mark.parametrize("kind", ALL)
def test_a_resend_keeps_identity_number_and_value(kind: str) -> None:
    world = waiting(kind)
    parked = {row.event: row for _, row in world.parked_rows()}
    drain(world)
    sent = {effect.event: effect for effect in world.out.effects}
    for event in (1, 3):
        assert sent[event].osn == parked[event].osn == event
        assert sent[event].entity == "a"
        assert sent[event].value == parked[event].value
        assert sent[event].key == f"pay/out/a/{event}"
    assert sent[3].value["v"] == 9


def test_a_position_keeps_its_source_partition() -> None:
    world = waiting("opaque", ORDERED_POSITION)
    drain(world)
    assert world.out.effects[1].key == "pay/out/t%2F0/1"
    assert world.out.effects[1].entity == "a"


# -- not too early


def held_at(parked_s_ago: float, **settings: Any) -> World:
    world = world_of(Post(), lease_s=LEASE, deadline_s=DEADLINE, **settings)
    world.out.plan(lost_on_the_way)
    world.minibatch(0, "a1 b2")
    world.resolve("a1", "resend")
    world.clock.move(parked_s_ago)
    world.clock.slept.clear()
    return world


@pytest.mark.parametrize(("ago", "slept"), [(0.0, [40.0]), (25.0, [15.0]), (41.0, [])])
def test_a_resend_waits_until_lease_and_deadline_since_it_was_parked(
    ago: float, slept: list[float]
) -> None:
    world = held_at(ago)
    driver = world.driver
    assert Resending(driver.client, driver.sinks[0], driver.process, driver.runtime).drain() == 1
    assert world.clock.slept == slept
    assert world.out.seen == "b2 a1"


def test_the_driver_does_not_wait_for_a_resend_but_sends_it_when_its_time_has_come() -> None:
    world = held_at(0.0)
    assert world.driver.drain() == 0
    world.minibatch(1, "b3")
    assert world.out.seen == "b2 b3", "nobody else waits for it"
    assert world.clock.slept == []
    world.clock.move(LEASE + DEADLINE)
    assert world.driver.drain() == 1
    assert world.out.seen == "b2 b3 a1"


def test_without_the_wait_it_would_overtake_the_call_that_was_in_flight() -> None:
    world = world_of(Post(), lease_s=0.0, deadline_s=0.0)  # says less than is true

    def still_in_flight(act: Any) -> Any:
        world.clock.later(20.0, act)
        raise TimeoutError("no reply")

    world.out.plan(still_in_flight)
    world.minibatch(0, "a1")
    world.resolve("a1", "resend")
    world.driver.drain()
    first_resend = world.out.effects[0].at
    world.clock.move(60)
    assert world.out.effects[1].at > first_resend


# -- two senders


@pytest.mark.rows("S19")
@pytest.mark.parametrize("kind", DRAINED)
def test_of_two_who_claim_it_at_once_one_sends(kind: str) -> None:
    world = waiting(kind)
    second = sender(world, "second")
    sent: list[int] = []
    # Just before the first one's claim is written, the other one drains everything.
    world.store.script.append(after(lambda: sent.append(second.drain())))
    sent.append(sender(world, "first").drain())
    assert sent == [2, 0]
    assert world.out.seen == "b2 a1 a3"


@pytest.mark.rows("S19")
@pytest.mark.parametrize("kind", ["opaque", "probing", "repeatable"])
def test_while_one_sends_another_does_not(kind: str) -> None:
    world = waiting(kind, lease_s=LEASE, deadline_s=DEADLINE)
    second = sender(world, "second")
    meanwhile: list[int] = []
    world.out.plan(after(lambda: meanwhile.append(second.drain())))
    assert sender(world, "first").drain() == 2
    assert meanwhile == [0]
    assert second.drain() == 0
    assert world.out.seen == "b2 a1 a3"


@pytest.mark.rows("S19")
@pytest.mark.parametrize("kind", [kind for kind in DRAINED if kind != "opaque"])
def test_a_sender_that_was_thought_dead_does_not_make_it_arrive_twice(kind: str) -> None:
    world = waiting(kind, lease_s=LEASE, deadline_s=DEADLINE)
    # Before its claim is answered the first one stands still for too long, and another one sends.
    world.store.script.append(before(lambda: another(world)))
    assert sender(world, "first").drain() == 0
    assert world.out.seen == "b2 a1 a3"
    assert world.parked() == ["a1 delivered", "a3 delivered"]


def test_without_looking_at_its_lease_a_paused_sender_would_repeat() -> None:
    world = waiting("opaque", on_doubt=OnDoubt.RESEND, lease_s=LEASE, deadline_s=DEADLINE)
    [sink] = world.sinks
    clock = StillClock()  # its clock stands still
    frozen = Resending(
        LedgerClient(world.store, "pay", clock),
        sink,
        world.process("first"),
        Runtime(clock, world.runtime.random),
    )
    world.store.script.append(before(lambda: another(world)))
    assert frozen.drain() == 0
    assert world.out.seen == "b2 a1 a3 a1"


@pytest.mark.rows("S19")
@pytest.mark.parametrize("kind", ["probing", "opaque"])
def test_a_sender_that_tries_again_and_again_stops_when_another_has_it(kind: str) -> None:
    world = waiting(
        kind, on_doubt=OnDoubt.RESEND, lease_s=LEASE, deadline_s=DEADLINE, retry=Retry(1, 5, 600)
    )

    def nobody_there(act: Any) -> Any:
        another(world)
        raise NotDelivered("nobody is there")

    world.out.plan(nobody_there)
    assert sender(world, "first").drain() == 0
    assert world.out.seen == "b2 a1 a3"


@pytest.mark.rows("S21")
def test_a_doubt_of_one_entity_is_not_forgotten_when_another_entity_is_drained() -> None:
    world = world_like("opaque", on_reject=OnReject.BLOCK)
    world.out.refuses.update({"a1", "b2"})
    world.minibatch(0, "a1 b2")
    world.out.refuses.clear()
    world.resolve("b2", "resend")
    world.out.plan(crash_after)
    with pytest.raises(Crash):
        sender(world, "first").drain()  # b2 was sent, and this is not recorded
    world.resolve("a1", "resend")
    another(world)
    another(world)
    assert world.out.seen.split().count("b2") == 1
    assert "b2 held" in world.parked()
    assert "a1 delivered" in world.parked()


def test_a_sender_whose_key_is_not_remembered_any_more_leaves_a_doubt() -> None:
    world = World()
    world.add(
        Absorber(keys=SeenKeys(3_600.0)),
        on_reject=OnReject.BLOCK,
        remembers_s=3_600.0,
        chunk_rows=1,
    )
    world.start()
    world.out.refuses.add("a1")
    world.minibatch(0, "a1 b2")
    world.out.refuses.clear()
    world.resolve("a1", "resend")
    world.out.plan(crash_after)
    with pytest.raises(Crash):
        sender(world, "first").drain()
    world.clock.move(3_700.0)
    another(world)
    assert world.out.seen == "b2 a1"
    assert world.parked() == ["a1 held"]


# -- a crash in the middle


@pytest.mark.rows("S19", "A13")
@pytest.mark.parametrize("kind", [kind for kind in ALL if kind != "opaque"])
def test_a_crash_of_the_sender_at_any_call_makes_nothing_arrive_twice(kind: str) -> None:
    for what, world in crash_everywhere(lambda: waiting(kind), drain):
        if kind.startswith("sequenced"):
            world.start()
            if world.opened().minibatch.batch == 0 or not world.opened().complete:
                world.minibatch(1, "b4")
        another(world)
        if kind.startswith("sequenced"):
            world.minibatch(2, "b5")
            assert [n for n in world.out.seen.split() if n[0] == "a"] == ["a1", "a3"], what
        else:
            assert world.out.seen == "b2 a1 a3", what
        assert world.parked() == ["a1 delivered", "a3 delivered"], what
        assert world.heads() == [], what


@pytest.mark.rows("S21")
def test_a_crash_of_a_sender_to_an_opaque_destination_leaves_a_doubt_not_a_repeat() -> None:
    for what, world in crash_everywhere(lambda: waiting("opaque"), drain):
        another(world)
        seen = world.out.seen.split()
        assert len(seen) == len(set(seen)), what
        states = dict(each.split() for each in world.parked())
        for name in ("a1", "a3"):
            assert name in seen or states[name] in ("held", "waiting"), what
        assert seen == [name for name in ("b2", "a1", "a3") if name in seen], what


def test_without_the_doubt_a_crashed_sender_would_repeat() -> None:
    def make() -> World:
        return waiting("opaque", on_doubt=OnDoubt.RESEND)

    twice = [
        what
        for what, world in crash_everywhere(make, drain)
        if another(world) >= 0 and world.out.seen.count("a1") > 1
    ]
    assert len(twice) >= 1  # that is what the policy `resend` says: it may arrive twice


# -- the outcome of a resend


@pytest.mark.parametrize("kind", [kind for kind in ALL if kind != "opaque"])
def test_a_lost_answer_is_found_out(kind: str) -> None:
    world = waiting(kind)
    world.out.plan(lost)
    drain(world)
    if kind.startswith("sequenced"):
        assert world.out.seen.split().count("a1") == 1
    else:
        assert world.out.seen == "b2 a1 a3"
    assert world.parked() == ["a1 delivered", "a3 delivered"]


def test_a_lost_answer_of_an_opaque_destination_is_in_doubt_again() -> None:
    world = waiting("opaque")
    world.out.plan(lost)
    drain(world)
    assert world.out.seen == "b2 a1"
    assert world.parked() == ["a1 held", "a3 waiting"]


@pytest.mark.parametrize("kind", DRAINED)
def test_what_is_rejected_again_waits_for_a_person_again(kind: str) -> None:
    world = waiting(kind)
    world.out.refuses.add("a1")
    drain(world)
    assert world.out.seen == "b2"
    assert world.parked() == ["a1 rejected", "a3 waiting"]
    world.resolve("a1", "discarded")
    drain(world)
    assert world.out.seen == "b2 a3"


def test_an_event_without_entity_can_be_resent_too() -> None:
    world = world_of(Post(), POSITION)
    world.out.plan(lost_on_the_way)
    world.minibatch(0, "a1 a2")
    world.resolve("a1", "resend")
    world.clock.move(60.0)
    assert world.driver.drain() == 1
    assert world.out.seen == "a2 a1"


def test_a_crash_between_effect_and_settle_is_asked_for_by_the_users_function() -> None:
    world = World()

    def arrived(event: Any) -> bool:
        return event.id in [effect.event for effect in world.out.effects]

    world.add(Post(), on_doubt=OnDoubt.PROBE, probe=arrived, on_reject=OnReject.BLOCK)
    world.start()
    world.out.refuses.add("a1")
    world.minibatch(0, "a1")
    world.out.refuses.clear()
    world.resolve("a1", "resend")
    world.out.plan(crash_after, fine)
    with pytest.raises(Crash):
        world.driver.drain()
    another(world)
    assert world.out.seen == "a1"
    assert world.parked() == ["a1 delivered"]


# -- SEQUENCED: by the partition's own task


@pytest.mark.parametrize("kind", ["sequenced", "sequenced by opener"])
def test_a_log_gets_its_resends_from_the_partitions_next_task_before_its_own_events(
    kind: str,
) -> None:
    world = waiting(kind)
    assert world.driver.drain() == 0
    assert world.out.seen == "b2"
    world.minibatch(1, "a4 b5")
    assert world.out.seen == "b2 a1 a3 a4 b5"
    assert world.out.numbers == [2, 1, 3, 4, 5]


def test_draining_looks_at_all_heads_once_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = world_like("opaque", chunk_rows=1, on_reject=OnReject.BLOCK)
    world.out.refuses.update({"a1", "b2", "c3"})
    world.minibatch(0, "a1 b2 c3")
    looks: list[str] = []

    def counted(client: LedgerClient, sink: str) -> Heads:
        looks.append(sink)
        return read_heads(client, sink)

    monkeypatch.setattr(resend, "read_heads", counted)
    assert sender(world, "first").drain() == 0
    assert looks == ["out"]
    assert world.heads() == ["a", "b", "c"]


def test_a_driver_reads_an_entity_that_waits_for_a_person_once_until_there_is_a_decision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = world_like("opaque", chunk_rows=1, on_reject=OnReject.BLOCK)
    world.out.refuses.update({"a1", "b2", "c3"})
    world.minibatch(0, "a1 b2 c3")
    world.out.refuses.clear()
    read: list[str | None] = []

    def noted(client: LedgerClient, sink: str, entity: str | None = None) -> list[Parked]:
        read.append(entity)
        return read_parked(client, sink, entity)

    monkeypatch.setattr(resend, "read_parked", noted)
    assert [world.driver.drain() for _ in range(3)] == [0, 0, 0]
    assert read == ["a", "b", "c"]
    world.minibatch(1, "a4 b5 d6")
    assert world.driver.drain() == 0
    assert read == ["a", "b", "c", "a", "b"], "events were parked behind two of them"
    read.clear()
    world.resolve("b2", "resend")
    assert world.driver.drain() == 2
    assert (set(read), world.out.seen) == ({"b"}, "d6 b2 b5")
    assert world.heads() == ["a", "c"]

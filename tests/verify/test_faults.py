"""Faults do what they are called, and nothing goes on after a crash."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import pytest

from semel.errors import LedgerUnavailable
from semel.ledger.keys import make_key
from semel.ledger.store.commit import Absent, Put
from semel.verify.simulator.cluster import MemoryStore
from semel.verify.simulator.faults import (
    POSSIBLE,
    CallFault,
    FaultyStore,
    FaultyWire,
    Kind,
    NoFaults,
    Plan,
    over,
)
from semel.verify.simulator.scheduler import Crashed, Endless, Hub, Job, VirtualClock
from semel.verify.simulator.story import Story

A = make_key("t", "a")
ONE = '{"n":1}'


@dataclass
class Once(NoFaults):
    """One fault, at the first call."""

    kind: CallFault
    used: bool = False

    def fault(self, wire: FaultyWire, kind: Kind) -> CallFault | None:
        used, self.used = self.used, True
        return None if used else self.kind

    def delay(self, kind: Kind) -> float:
        return 5.0

    def pause(self) -> float | None:
        return None


def store_of(plan: Plan) -> tuple[Hub, FaultyWire, MemoryStore, FaultyStore]:
    hub, memory = Hub(), MemoryStore()
    wire = FaultyWire(hub, hub.actor("process"), plan, Story(), "process")
    return hub, wire, memory, FaultyStore(memory, wire)


def commit(store: FaultyStore) -> None:
    store.commit([Absent(A)], [Put(A, ONE)])


def in_a_job(hub: Hub, wire: FaultyWire, store: FaultyStore) -> Job:
    job = hub.start(wire.actor, "job", lambda: commit(store))
    return hub.run_job(job)


@pytest.mark.parametrize(
    ("fault", "happened"),
    [(CallFault.CRASH, False), (CallFault.CRASH_AFTER, True), (CallFault.LATE, False)],
)
def test_after_a_crash_the_handles_are_dead(fault: CallFault, happened: bool) -> None:
    hub, wire, memory, store = store_of(Once(fault))
    assert in_a_job(hub, wire, store).crashed
    assert bool(memory.rows()) is happened
    with pytest.raises(Crashed):
        store.read([A])
    hub.settle()
    assert bool(memory.rows()) is (happened or fault is CallFault.LATE)


def test_production_cannot_swallow_a_crash() -> None:
    assert not issubclass(Crashed, Exception)
    _, _, memory, store = store_of(Once(CallFault.CRASH))
    calls: list[str] = []

    def body() -> None:
        try:
            with suppress(Exception):
                commit(store)
            calls.append("went on")
        finally:
            with pytest.raises(Crashed):
                commit(store)

    with pytest.raises(Crashed):
        body()
    assert not calls
    assert not memory.rows()


@pytest.mark.parametrize(("fault", "happened"), [(CallFault.LOST, True), (CallFault.AWAY, False)])
def test_a_lost_reply_is_not_a_call_that_reached_nobody(fault: CallFault, happened: bool) -> None:
    _, _, memory, store = store_of(Once(fault))
    with pytest.raises(LedgerUnavailable):
        commit(store)
    assert bool(memory.rows()) is happened


def test_a_twin_lands_later_and_meets_a_conflict() -> None:
    hub, wire, memory, store = store_of(Once(CallFault.TWIN))
    with pytest.raises(LedgerUnavailable):
        commit(store)
    assert memory.rows()
    hub.pass_until(hub.now + 10)
    assert wire.story.steps[-1][3] == "a copy changed nothing"


def test_a_paused_process_goes_on_where_it_was_when_it_is_woken() -> None:
    hub, wire, memory, store = store_of(Once(CallFault.PAUSE))
    job = in_a_job(hub, wire, store)
    assert job.paused
    assert not memory.rows()
    hub.settle()
    assert job.done
    assert memory.rows()


def test_an_input_that_is_cut_ends_as_if_that_were_its_end() -> None:
    _, wire, _, _ = store_of(Once(CallFault.CUT))
    assert list(over(wire, [1, 2, 3])) == []
    assert wire.cut
    _, wire, _, _ = store_of(NoFaults())
    assert list(over(wire, [1, 2, 3])) == [1, 2, 3]


def test_every_fault_is_possible_somewhere() -> None:
    assert {fault for faults in POSSIBLE.values() for fault in faults} == set(CallFault)
    assert POSSIBLE.keys() == set(Kind)


def test_sleepers_take_turns_and_time_passes_only_when_all_wait() -> None:
    hub = Hub()
    clock = VirtualClock(hub)
    order: list[str] = []

    def nap(name: str, seconds: float) -> None:
        clock.sleep(seconds)
        order.append(f"{name} at {clock.monotonic() - began:.0f}")

    began = hub.now
    hub.start(hub.actor("a"), "a", lambda: nap("a", 20))
    hub.start(hub.actor("b"), "b", lambda: nap("b", 10))
    hub.run(lambda: not hub.jobs)
    assert order == ["b at 10", "a at 20"]


def test_a_world_that_does_not_end_is_ended() -> None:
    hub, _, _, store = store_of(NoFaults())
    hub.turns_max = 50
    for _ in range(50):
        store.read([A])
    with pytest.raises(Endless):
        store.read([A])


def test_a_killed_process_runs_no_further() -> None:
    hub, wire, memory, store = store_of(Once(CallFault.PAUSE))
    job = in_a_job(hub, wire, store)
    hub.kill(wire.actor)
    assert job.done
    assert job.crashed
    assert not memory.rows()

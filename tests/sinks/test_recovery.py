"""A partition that was left half-done is resumed at the exact event, whatever the destination."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semel.errors import Diverged, Fenced, HeldInDoubt, Rejected
from semel.events import Given
from semel.ledger.verbs.parked import read_parked
from semel.protocol import Capability, ParkedState
from semel.sinks import Function, Sink, sink
from support.ledger.one_pipeline import LedgerWorld
from support.ledger.small_driver import SmallDriver, payments
from support.sinks.in_memory import Arrivals, Killed, MemorySink, killed_at, reply_lost_at

IDENTITY = Given(entity="c", event=("id",))
ROWS = payments(0, 47)
ALL = list(range(1, 48))
EXACT = [each for each in Capability if each is not Capability.OPAQUE]
FENCED = [Capability.TRANSACTIONAL, Capability.SEQUENCED]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LedgerWorld]:
    opened = LedgerWorld(tmp_path / "ledger.db")
    yield opened
    opened.close()


def witness(capability: Capability, into: Arrivals, chunk_rows: int = 10) -> MemorySink:
    return MemorySink(name="w", can=capability, into=into, chunk_rows=chunk_rows, span_chunks=2)


def killed(world: LedgerWorld, made: Sink, nonce: str = "n1") -> None:
    """Deliver until the process ends."""
    driver = SmallDriver(world, IDENTITY, [made], nonce)
    opening = driver.open(0)
    with pytest.raises(Killed):
        driver.deliver(opening, "0", [ROWS])


@pytest.mark.rows("S10", "A9", "A13", "O10", "S15")
@pytest.mark.parametrize("capability", EXACT)
@pytest.mark.parametrize("call", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_attempt_killed_at_any_call_leaves_nothing_lost_and_nothing_twice(
    world: LedgerWorld, capability: Capability, call: int, when: str
) -> None:
    into = Arrivals()
    setattr(into, when, killed_at(call))
    killed(world, witness(capability, into))
    into.before = into.after = None
    SmallDriver(world, IDENTITY, [witness(capability, into)], "n2").minibatch(0, {"0": ROWS})
    assert into.arrived == ALL


@pytest.mark.rows("A11", "S10")
@pytest.mark.parametrize("capability", EXACT)
@pytest.mark.parametrize("chunk_rows", [1, 7, 100])
def test_other_limits_after_a_take_over_repeat_the_recorded_ranges(
    world: LedgerWorld, capability: Capability, chunk_rows: int
) -> None:
    into = Arrivals(after=killed_at(2))
    killed(world, witness(capability, into))
    into.after = None
    later = witness(capability, into, chunk_rows)
    SmallDriver(world, IDENTITY, [later], "n2").minibatch(0, {"0": ROWS})
    assert into.arrived == ALL


@pytest.mark.rows("A13")
def test_a_probing_destination_is_asked_and_sent_only_what_is_absent(world: LedgerWorld) -> None:
    into = Arrivals(before=killed_at(2))
    killed(world, witness(Capability.PROBING, into))
    into.before = None
    into.calls.clear()
    SmallDriver(world, IDENTITY, [witness(Capability.PROBING, into)], "n2").minibatch(
        0, {"0": ROWS}
    )
    asked_and_sent = ["ask", "ask", "deliver 10-20", "deliver 20-30", "deliver 30-40"]
    assert into.calls[:5] == asked_and_sent
    assert into.arrived == ALL


@pytest.mark.rows("O9", "O10", "O11", "O23", "A8")
@pytest.mark.parametrize("capability", FENCED)
def test_what_the_destination_has_is_asked_for_before_anything_is_sent(
    world: LedgerWorld, capability: Capability
) -> None:
    into = Arrivals(after=killed_at(2))
    killed(world, witness(capability, into))
    into.after = None
    into.calls.clear()
    driver = SmallDriver(world, IDENTITY, [witness(capability, into)], "n2")
    [report] = driver.minibatch(0, {"0": ROWS})
    assert into.calls[:2] == ["take over", "deliver 20-30"]
    assert (report.suppressed, report.delivered) == (20, 27)
    assert into.arrived == ALL


@pytest.mark.rows("S19", "A17")
@pytest.mark.parametrize("capability", FENCED)
def test_a_zombie_that_wakes_up_is_refused_by_the_destination(
    world: LedgerWorld, capability: Capability
) -> None:
    into = Arrivals()
    driver = SmallDriver(world, IDENTITY, [witness(capability, into)])
    opening = driver.open(0)
    slept = False

    def replaced(chunk: object) -> None:
        nonlocal slept
        if not slept and into.count == 20:
            slept = True
            driver.deliver(opening, "0", [ROWS])

    into.before = replaced
    with pytest.raises(Fenced):
        driver.deliver(opening, "0", [ROWS])
    assert slept
    assert into.arrived == ALL


@pytest.mark.rows("O11")
def test_a_log_that_lost_what_it_acknowledged_stops_the_pipeline(world: LedgerWorld) -> None:
    into = Arrivals()
    driver = SmallDriver(world, IDENTITY, [witness(Capability.SEQUENCED, into)])
    driver.minibatch(0, {"0": ROWS})
    for log in into.logs.values():
        del log.records[2:]
    into.before = killed_at(1)
    opening = driver.open(1)
    with pytest.raises(Killed):
        driver.deliver(opening, "0", [payments(100, 5)])
    with pytest.raises(Diverged, match="it has only 20"):
        driver.deliver(opening, "0", [payments(100, 5)])


@pytest.mark.rows("A22", "O24")
@pytest.mark.parametrize("capability", EXACT)
def test_a_replay_with_other_content_raises_instead_of_writing(
    world: LedgerWorld, capability: Capability
) -> None:
    into = Arrivals(after=killed_at(3))
    killed(world, witness(capability, into))
    into.after = None
    before = into.arrived
    driver = SmallDriver(world, IDENTITY, [witness(capability, into)], "n2")
    opening = driver.open(0)
    with pytest.raises(Diverged, match="partition 0"):
        driver.deliver(opening, "0", [payments(1, 47)])
    assert into.arrived == before


@pytest.mark.parametrize("capability", EXACT)
@pytest.mark.parametrize("call", [1, 3, 5])
def test_a_lost_reply_of_an_exact_destination_leaves_no_doubt(
    world: LedgerWorld, capability: Capability, call: int
) -> None:
    into = Arrivals(after=reply_lost_at(call))
    driver = SmallDriver(world, IDENTITY, [witness(capability, into)])
    [report] = driver.minibatch(0, {"0": ROWS})
    assert into.arrived == ALL
    assert (report.doubted, report.parked) == (0, 0)


# --- OPAQUE ---------------------------------------------------------------------------------------


class Webhook:
    """Gets events one by one; ends the process, or loses its answer, at one of them."""

    def __init__(self) -> None:
        self.got: list[int] = []
        self.kill_at: int | None = None

    def sink(self, **settings: Any) -> Function:
        def call(event: Any) -> None:
            number: int = event.id
            self.got.append(number)
            if number == self.kill_at:
                raise Killed

        decorate: Any = sink(name="w", **settings)
        made: Function = decorate(call)
        return made


ORDERED_BY = {at: f"e{at % 3}" for at in range(47)}


@pytest.mark.rows("S10", "S11", "S21")
@pytest.mark.parametrize("window", [1, 4])
def test_a_crash_leaves_at_most_one_window_in_doubt_and_sends_none_of_it_again(
    world: LedgerWorld, window: int
) -> None:
    hook = Webhook()
    hook.kill_at = 21
    killed(world, hook.sink(window=window))
    hook.kill_at = None
    sent_before = list(hook.got)
    driver = SmallDriver(world, IDENTITY, [hook.sink(window=window)], "n2")
    [report] = driver.minibatch(0, {"0": ROWS})
    rows = [row for _, row, _ in read_parked(world.client, "w")]
    held = [row.event for row in rows if row.state is ParkedState.HELD]
    waiting = [row.event for row in rows if row.state is ParkedState.WAITING]
    assert 21 in held
    assert len(held) <= window
    assert report.doubted == len(held)
    assert hook.got[: len(sent_before)] == sent_before
    assert len(hook.got) == len(set(hook.got))
    assert sorted({*hook.got, *held, *waiting}) == list(range(47))
    blocked = {ORDERED_BY[int(str(event))] for event in held}
    assert {ORDERED_BY[int(str(event))] for event in waiting} <= blocked


@pytest.mark.rows("S21")
@pytest.mark.parametrize(
    ("on_doubt", "times", "state"),
    [("resend", 2, ParkedState.RESENT), ("skip", 1, ParkedState.SKIPPED)],
)
def test_policies_that_decide_by_themselves_record_what_they_did(
    world: LedgerWorld, on_doubt: str, times: int, state: ParkedState
) -> None:
    hook = Webhook()
    hook.kill_at = 21
    killed(world, hook.sink(on_doubt=on_doubt))
    hook.kill_at = None
    SmallDriver(world, IDENTITY, [hook.sink(on_doubt=on_doubt)], "n2").minibatch(0, {"0": ROWS})
    assert hook.got.count(21) == times
    assert sorted(set(hook.got)) == list(range(47))
    assert [(r.event, r.state) for _, r, _ in read_parked(world.client, "w")] == [(21, state)]


@pytest.mark.rows("S21")
def test_stop_stops_until_a_person_has_decided(world: LedgerWorld) -> None:
    hook = Webhook()
    hook.kill_at = 21
    killed(world, hook.sink(on_doubt="stop"))
    hook.kill_at = None
    for nonce in ("n2", "n3"):
        driver = SmallDriver(world, IDENTITY, [hook.sink(on_doubt="stop")], nonce)
        opening = driver.open(0)
        with pytest.raises(HeldInDoubt, match="event 21 of 'e0'"):
            driver.deliver(opening, "0", [ROWS])
    assert hook.got == list(range(22))


@pytest.mark.rows("S21", "A14")
@pytest.mark.parametrize(("told", "times"), [(True, 1), (False, 2), (None, 1)])
def test_a_probe_of_the_users_says_what_happened(
    world: LedgerWorld, told: bool | None, times: int
) -> None:
    hook = Webhook()
    hook.kill_at = 21
    asked: list[object] = []

    def probe(event: Any) -> bool | None:
        asked.append(event.id)
        return told

    killed(world, hook.sink(on_doubt=probe))
    hook.kill_at = None
    SmallDriver(world, IDENTITY, [hook.sink(on_doubt=probe)], "n2").minibatch(0, {"0": ROWS})
    assert asked == [21]
    assert hook.got.count(21) == times
    held = [row for _, row, _ in read_parked(world.client, "w") if row.state is ParkedState.HELD]
    assert bool(held) == (told is None)


def test_a_rejected_event_is_parked_alone_and_its_neighbours_arrive(world: LedgerWorld) -> None:
    got: list[int] = []

    @sink(name="w", window=8, batches=True)
    def charge(batch: Any) -> None:
        ids: list[int] = batch.column("id").to_pylist()
        if 21 in ids:
            raise Rejected("no such card")
        got.extend(ids)

    SmallDriver(world, IDENTITY, [charge]).minibatch(0, {"0": ROWS})
    [(_, row, _)] = read_parked(world.client, "w")
    assert (row.event, row.state, row.why) == (21, ParkedState.REJECTED, "no such card")
    assert sorted(got) == [at for at in range(47) if at != 21]

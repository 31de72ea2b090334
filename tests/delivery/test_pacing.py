"""Pacing without Spark: when it waits, what it records, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from semel.delivery.observer import MarkerChosen
from semel.delivery.pacing import KEPT, Pacing, Waited, quantile
from semel.events import Given
from semel.ledger import Ledger, MarkerHead, check_ledger, make_key
from semel.ledger.store import Put
from semel.operate import read_status
from semel.protocol import Capability
from semel.streams import Application
from support.ledger.one_pipeline import LedgerWorld
from support.ledger.small_driver import SmallDriver, payments
from support.sinks.in_memory import MemorySink

APPLICATION = Application("payments", 4.0, 0.5)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LedgerWorld]:
    opened = LedgerWorld(tmp_path / "ledger.db")
    yield opened
    opened.close()


class Seen:
    """An observer that keeps the choices."""

    def __init__(self) -> None:
        self.choices: list[MarkerChosen] = []

    def observe(self, event: object) -> None:
        if isinstance(event, MarkerChosen):
            self.choices.append(event)


class Paced:
    """A paced pipeline on a clock that moves only when `sleep` is called."""

    def __init__(
        self,
        world: LedgerWorld,
        trigger_s: float = 0.0,
        nonce: str = "n1",
        witness: MemorySink | None = None,
    ) -> None:
        self.world, self.seen = world, Seen()
        self.witness = witness or MemorySink(name="w", can=Capability.TRANSACTIONAL)
        self.driver = SmallDriver(world, Given(entity="c", event=("id",)), [self.witness], nonce)
        self.pacing = Pacing(world.client, APPLICATION, self.seen, trigger_s)

    def minibatch(self, batch: int, count: int = 10, seconds: float = 0.5) -> float:
        """Deliver one minibatch that takes so long; return how long the pacing waits after it."""
        clock = self.world.clock
        self.pacing.began()
        opening = self.driver.open(batch)
        reports = self.driver.deliver(opening, "0", [payments(batch * 1_000, count)])
        clock.sleep(seconds)
        marker = self.pacing.plan(opening, reports)
        self.driver.minibatches.complete(opening, reports, ["w"], also=marker)
        self.pacing.ended()
        return self.pacing.hold(lambda: True)


@pytest.mark.rows("O1", "O2", "N7")
def test_it_waits_until_the_next_marker_is_due(world: LedgerWorld) -> None:
    paced = Paced(world)
    # 2 s are planned, a minibatch takes 0.5 s: a marker every 1.5 s, of which 0.5 s are over.
    assert paced.minibatch(0) == pytest.approx(1.0, abs=0.15)
    for batch in range(1, 5):
        assert paced.minibatch(batch) == pytest.approx(1.0, abs=0.15)
    last = paced.seen.choices[-1]
    assert last.number == 5
    assert last.p50_s == pytest.approx(1.25, abs=0.2)
    assert last.p99_s == pytest.approx(2.0, abs=0.2)


@pytest.mark.rows("S7", "O22", "N2")
def test_a_marker_is_recorded_in_the_commit_that_completes_its_minibatch(
    world: LedgerWorld,
) -> None:
    paced = Paced(world)
    paced.minibatch(0)
    world.store.forget()
    paced.minibatch(1)
    assert len(world.store.asked) == 1 + 1 + 1, "open, one partition, complete"
    assert world.store.looks("markers") == 0
    rows = dict(Ledger(world.store).rows("markers"))
    assert list(rows) == ["pipeline:pay", "pipeline:pay/a1", "pipeline:pay/a2"]
    assert rows["pipeline:pay/a1"]["reason"] == "the first minibatch of this start"
    assert rows["pipeline:pay/a2"]["events"] == 10
    assert rows["pipeline:pay/a2"]["interval_s"] == pytest.approx(1.5, abs=0.01)
    assert rows["pipeline:pay/a2"]["reason"].startswith("a marker every 1.5 s: the longest")
    assert [each for each in check_ledger(world.store)[1] if each.table == "markers"] == []


@pytest.mark.rows("O7", "O22")
def test_the_positions_of_all_inputs_are_recorded(world: LedgerWorld) -> None:
    paced = Paced(world)
    paced.pacing.began()
    opening = paced.driver.open(0)
    inputs = ('{"logOffset":3}', '{"t":{"0":5}}')
    paced.driver.complete(opening, [])
    updates = paced.pacing.plan(replace(opening, inputs=inputs), [])
    world.store.commit([], updates)
    row = dict(Ledger(world.store).rows("markers"))["pipeline:pay/a1"]
    assert row["positions"] == {"0": inputs[0], "1": inputs[1]}


def test_only_the_newest_markers_are_kept(world: LedgerWorld) -> None:
    paced = Paced(world)
    for batch in range(KEPT + 3):
        paced.minibatch(batch, count=1)
    assert Ledger(world.store).count("markers") == KEPT + 1
    assert [each for each in check_ledger(world.store)[1] if each.table == "markers"] == []


@pytest.mark.rows("O14")
def test_a_restart_continues_with_what_was_learned_and_the_next_number(world: LedgerWorld) -> None:
    paced = Paced(world)
    for batch in range(6):
        paced.minibatch(batch, 10 + 490 * (batch % 2), 0.5 + 0.5 * (batch % 2))
    learned = paced.seen.choices[-1].choice
    assert learned.per_event_s == pytest.approx(0.5 / 490, rel=0.1)
    again = Paced(world, nonce="n2", witness=paced.witness)
    again.minibatch(6)
    [chosen] = again.seen.choices
    assert chosen.number == 7
    # One size of a minibatch does not tell what an event costs: that is from before.
    assert chosen.choice.per_event_s == pytest.approx(learned.per_event_s, rel=0.1)


@pytest.mark.rows("A10", "O11")
def test_a_minibatch_that_is_only_counted_gets_no_second_marker_and_is_not_waited_for(
    world: LedgerWorld,
) -> None:
    Paced(world).minibatch(0)
    again = Paced(world, nonce="n2")
    assert again.minibatch(0) == 0.0
    assert again.seen.choices == []
    assert Ledger(world.store).count("markers") == 2


def test_it_ends_at_once_when_the_query_is_stopped(world: LedgerWorld) -> None:
    paced = Paced(world)
    paced.minibatch(0)
    looks = iter([True, True, False])
    paced.pacing._marker_at = world.clock.monotonic()
    assert paced.pacing.hold(lambda: next(looks)) == pytest.approx(0.2)


@pytest.mark.parametrize("trigger_s", [1.6, float("inf")])
def test_it_does_not_wait_beside_a_trigger_that_is_longer_or_ends_by_itself(
    world: LedgerWorld, trigger_s: float
) -> None:
    paced = Paced(world, trigger_s)
    assert [paced.minibatch(batch) for batch in range(3)] == [0.0, 0.0, 0.0]
    assert Ledger(world.store).count("markers") == 4, "its markers are recorded"


@pytest.mark.rows("A3")
def test_it_does_not_wait_while_input_is_left_behind(world: LedgerWorld) -> None:
    paced = Paced(world)
    paced.minibatch(0)
    assert paced.pacing.hold(lambda: True, behind=True) == 0.0


@pytest.mark.rows("O21")
def test_a_source_that_was_silent_is_no_latency_of_its_events(world: LedgerWorld) -> None:
    paced = Paced(world)
    for batch in range(6):
        paced.minibatch(batch)
        world.clock.sleep(0.05)  # what Spark needs between two micro-batches
    world.clock.sleep(3_600)
    paced.minibatch(6)
    last = paced.seen.choices[-1]
    assert last.p99_s is not None
    assert last.p99_s < 2.2


@pytest.mark.rows("O20")
def test_the_status_says_the_newest_choice_and_the_latency_that_is_reached(
    world: LedgerWorld,
) -> None:
    paced = Paced(world)
    for batch in range(3):
        paced.minibatch(batch)
    pacing = read_status(Ledger(world.store), "pay", watch=False).pacing
    assert pacing is not None
    assert (pacing.application, pacing.latency_s, pacing.marker) == ("payments", 4.0, 3)
    assert pacing.p99_s == pytest.approx(2.0, abs=0.2)
    assert pacing.reason.startswith("a marker every 1.5 s")
    assert pacing.to_json()["minibatch"] == "1.2"


def test_a_damaged_marker_is_left_out_of_the_status_and_named(world: LedgerWorld) -> None:
    paced = Paced(world)
    paced.minibatch(0)
    world.store.commit([], [Put(make_key(MarkerHead.TABLE, "pipeline:pay"), "{")])
    found = read_status(Ledger(world.store), "pay", watch=False)
    assert found.pacing is None
    assert [row.table for row in found.damaged] == ["markers"]


def test_the_quantile_is_of_events_that_arrive_evenly_between_two_markers() -> None:
    assert quantile([], 0.5) is None
    assert quantile([Waited(1.0, 0.5, 0)], 0.5) is None
    assert quantile([Waited(1.0, 0.5, 10)], 0.5) == pytest.approx(1.0, abs=0.01)
    assert quantile([Waited(1.0, 0.5, 10)], 0.99) == pytest.approx(1.49, abs=0.01)
    assert quantile([Waited(0.0, 0.5, 10)], 0.99) == pytest.approx(0.5, abs=0.01)
    many = [Waited(1.0, 0.5, 990), Waited(0.0, 9.0, 10)]
    assert quantile(many, 0.5) == pytest.approx(1.0, abs=0.02)
    assert quantile(many, 0.999) == pytest.approx(9.0, abs=0.02)

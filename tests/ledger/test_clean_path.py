"""The cost of a clean path, counted at the store: commits, and no read of `events`."""

from __future__ import annotations

import pyarrow as pa
import pytest

from semel.events import Given, Identity, Position
from semel.protocol import Capability
from semel.sinks import Sink, sink
from support.ledger.one_pipeline import LedgerWorld
from support.ledger.small_driver import SmallDriver, messages, payments
from support.sinks.in_memory import Arrivals, MemorySink

GIVEN = Given(entity="c", event=("id",), increasing=True)
POSITION = Position()
FENCED = [Capability.TRANSACTIONAL, Capability.SEQUENCED]
KEYED = [Capability.REPEATABLE, Capability.PROBING]


def commits_of_partition(
    world: LedgerWorld, witness: Sink, rows: list[pa.RecordBatch], identity: Identity = GIVEN
) -> int:
    """Deliver one new partition and return the number of commits; `events` is not read."""
    driver = SmallDriver(world, identity, [witness])
    opening = driver.open(0)
    partition = "0" if identity is GIVEN else "t/0"
    world.store.forget()
    reports = driver.deliver(opening, partition, rows)
    commits = len(world.store.asked)
    assert len(world.store.landed) == commits
    assert world.store.looks("events") == 0
    assert world.store.looks("streams") == 0
    world.store.forget()
    driver.complete(opening, reports)
    assert len(world.store.asked) == 1
    assert world.store.looks("events") == 0
    return commits


@pytest.mark.rows("S7", "S8")
@pytest.mark.parametrize("capability", FENCED)
@pytest.mark.parametrize("count", [1, 1_000, 1_000_000])
def test_a_partition_of_any_size_costs_one_commit_where_the_destination_tells(
    world: LedgerWorld, capability: Capability, count: int
) -> None:
    into = Arrivals(keeps_ids=False)
    witness = MemorySink(name="w", can=capability, into=into, chunk_rows=50_000)
    rows = [messages(start, min(count, 100_000)) for start in range(0, count, 100_000)]
    assert commits_of_partition(world, witness, rows, POSITION) == 1
    assert into.count == count
    assert into.arrived[-1] == count


@pytest.mark.rows("S8", "S11")
@pytest.mark.parametrize("capability", FENCED)
def test_the_same_holds_for_given_ids(world: LedgerWorld, capability: Capability) -> None:
    witness = MemorySink(name="w", can=capability, chunk_rows=10)
    assert commits_of_partition(world, witness, [payments(0, 1_000)]) == 1
    assert witness.into.arrived == list(range(1, 1_001))


@pytest.mark.rows("S8", "S11", "A4")
@pytest.mark.parametrize("capability", KEYED)
@pytest.mark.parametrize(
    ("count", "commits"), [(1, 1), (40, 1), (41, 2), (80, 2), (81, 3), (1_000, 25)]
)
def test_a_destination_with_keys_costs_one_commit_per_further_span(
    world: LedgerWorld, capability: Capability, count: int, commits: int
) -> None:
    witness = MemorySink(name="w", can=capability, chunk_rows=10, span_chunks=4)
    assert commits_of_partition(world, witness, [payments(0, count)]) == commits
    assert witness.into.arrived == list(range(1, count + 1))


@pytest.mark.rows("S8", "S11", "A4")
@pytest.mark.parametrize(
    ("window", "count", "commits"), [(1, 1, 2), (1, 7, 8), (5, 5, 2), (5, 6, 3), (5, 50, 11)]
)
def test_an_opaque_destination_costs_one_commit_per_window_and_one_at_the_end(
    world: LedgerWorld, window: int, count: int, commits: int
) -> None:
    got: list[object] = []
    witness = sink(window=window, name="w")(lambda event: got.append(event.id))
    assert commits_of_partition(world, witness, [payments(0, count)]) == commits
    assert got == list(range(count))


@pytest.mark.parametrize("capability", Capability)
@pytest.mark.parametrize("rows", [[], [payments(0, 0)]], ids=["no batch", "an empty batch"])
def test_an_empty_partition_writes_and_reads_nothing(
    world: LedgerWorld, capability: Capability, rows: list[pa.RecordBatch]
) -> None:
    witness = MemorySink(name="w", can=capability)
    driver = SmallDriver(world, Given(entity="c", event=("id",)), [witness])
    opening = driver.open(0)
    world.store.forget()
    assert driver.deliver(opening, "0", rows) == []
    assert not world.store.asked
    assert world.store.looks("streams") + world.store.looks("events") == 0
    assert not witness.into.calls
    driver.complete(opening, [])


@pytest.mark.rows("S7", "S8")
@pytest.mark.parametrize("capability", FENCED)
def test_a_minibatch_costs_two_commits_by_the_driver_and_one_per_partition(
    world: LedgerWorld, capability: Capability
) -> None:
    witness = MemorySink(name="w", can=capability, into=Arrivals())
    driver = SmallDriver(world, Position(), [witness])
    for batch in range(6):
        world.store.forget()
        opening = driver.open(batch)
        assert len(world.store.asked) == 1
        reports = []
        for partition in range(5):
            rows = messages(batch * 10, 10, partition=partition)
            reports += driver.deliver(opening, f"t/{partition}", [rows])
        assert len(world.store.asked) == 1 + 5
        driver.complete(opening, reports)
        assert len(world.store.asked) == 1 + 5 + 1
        assert world.store.looks("events") == 0


@pytest.mark.rows("S20")
def test_several_sinks_cost_one_claim_each_in_one_pass(world: LedgerWorld) -> None:
    one, two = (MemorySink(name=name, can=Capability.TRANSACTIONAL) for name in ("one", "two"))
    driver = SmallDriver(world, GIVEN, [one, two])
    world.store.forget()
    driver.minibatch(0, {"0": payments(0, 100)})
    assert len(world.store.asked) == 1 + 2 + 1
    assert one.into.arrived == two.into.arrived == list(range(1, 101))


@pytest.mark.rows("S7")
def test_a_partition_seen_before_reads_its_spans_once(world: LedgerWorld) -> None:
    witness = MemorySink(name="w", can=Capability.REPEATABLE, chunk_rows=10, span_chunks=1)
    driver = SmallDriver(world, GIVEN, [witness])
    opening = driver.open(0)
    driver.deliver(opening, "0", [payments(0, 25)])
    world.store.forget()
    driver.deliver(opening, "0", [payments(0, 25)])
    assert world.store.looks("streams") == 1
    assert world.store.scans["events"] == 1
    assert world.store.reads["events"] == 0
    assert witness.into.arrived == list(range(1, 26))

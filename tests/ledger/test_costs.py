"""The cost that `semel explain` prints is the one in the ledger: commits, and bytes."""

from __future__ import annotations

import math
from dataclasses import replace

import pyarrow as pa
import pytest

from semel.delivery import PipelineSpec
from semel.events import Counter, Given, Identity, Position
from semel.guarantees.costs import Load, cost
from semel.protocol import Capability
from semel.sinks import Sink, sink
from support.ledger.one_pipeline import LedgerWorld
from support.ledger.small_driver import SmallDriver, messages, payments
from support.sinks.in_memory import Arrivals, MemorySink

GIVEN = Given(entity="customer", event=("payment_id",))
INCREASING = replace(GIVEN, increasing=True)
COUNTER = Counter(entity="customer")
README = sink(window=1, on_doubt="hold", name="charge")(lambda _: None)


def rows(start: int, count: int) -> pa.RecordBatch:
    """Payments of many customers, with ids that do not follow each other."""
    return pa.record_batch(
        {
            "customer": [f"c{at * 7_919 % 10_000_000:07d}" for at in range(start, start + count)],
            "payment_id": [1_000_000 + at * 17 for at in range(start, start + count)],
            "amount": list(range(count)),
        }
    )


def agreed(identity: Identity, by: Sink = README, partitions: int | None = 2) -> PipelineSpec:
    return PipelineSpec("pay", (by,), identity, partitions)


@pytest.mark.parametrize("count", [1, 7, 40, 41])
@pytest.mark.parametrize(
    "by",
    [
        README,
        sink(window=5, name="w")(lambda _: None),
        *(
            MemorySink(name="w", can=can, chunk_rows=10, span_chunks=4)
            for can in Capability
            if can is not Capability.OPAQUE
        ),
    ],
    ids=lambda each: f"{each.capability.value}-{each.chunk_rows}",
)
def test_a_partition_costs_as_many_commits_as_are_computed(
    world: LedgerWorld, by: Sink, count: int
) -> None:
    if isinstance(by, MemorySink):
        by = replace(by, into=Arrivals())
    driver = SmallDriver(world, Given(entity="c", event=("id",)), [by])
    opening = driver.open(0)
    world.store.forget()
    driver.deliver(opening, "0", [payments(0, count)])
    spans = math.ceil(count * cost(by).commits_per_event)
    settles_last = by.capability is Capability.OPAQUE
    assert len(world.store.landed) == (spans + settles_last or 1)


@pytest.mark.rows("N12")
@pytest.mark.parametrize(("per_minibatch", "window"), [(2, 1), (10, 1), (200, 100)])
def test_the_ledger_of_the_readme_grows_as_computed(
    world: LedgerWorld, per_minibatch: int, window: int
) -> None:
    by = sink(window=window, name="charge")(lambda _: None)
    driver = SmallDriver(world, GIVEN, [by])
    sizes = []
    half = per_minibatch // 2
    for batch in range(24):
        start = batch * per_minibatch
        driver.minibatch(batch, {"0of2": rows(start, half), "1of2": rows(start + half, half)})
        if batch in (11, 23):
            sizes.append(world.size())
    measured = (sizes[1] - sizes[0]) / (12 * per_minibatch)
    load = Load(events_per_s=per_minibatch, minibatches=20)
    computed = cost(by, agreed(GIVEN, by), load)
    assert computed.commits_per_event == 1 / window
    assert (computed.remembered_per, computed.kept_s) == ("event", 7 * 86_400)
    assert computed.bytes_each == pytest.approx(measured, rel=0.1)
    assert computed.bytes_per_day == computed.bytes_each * per_minibatch * 86_400


@pytest.mark.parametrize("identity", [INCREASING, COUNTER], ids=["increasing", "counter"])
def test_ids_that_rise_cost_bytes_for_each_entity_and_none_for_each_event(
    world: LedgerWorld, identity: Identity
) -> None:
    driver = SmallDriver(world, identity, [sink(window=1_000, name="charge")(lambda _: None)])
    entities = 500
    customers = rows(0, entities).column("customer")
    sizes = []
    for batch in range(30):
        same = {"customer": customers, "payment_id": [1_000_000 + batch * 17] * entities}
        order = pa.record_batch(same).sort_by(
            [("payment_id", "ascending"), ("customer", "ascending")]
        )
        driver.minibatch(batch, {"0of1": order})
        sizes.append(world.size())
    computed = cost(README, agreed(identity))
    assert (computed.remembered_per, computed.kept_s) == ("entity", None)
    assert computed.bytes_per_day == 0
    one = computed.bytes_each * entities
    assert one <= max(sizes[15:]), "a snapshot of all stands"
    assert max(sizes[15:]) <= 8 * one, "some snapshots, changes, and the spans of two minibatches"
    assert max(sizes[22:]) <= 1.2 * max(sizes[15:22])


def test_positions_cost_nothing_for_an_event(world: LedgerWorld) -> None:
    driver = SmallDriver(world, Position(), [sink(window=10, name="charge")(lambda _: None)])
    sizes = []
    for batch in range(20):
        driver.minibatch(batch, {"t/0": messages(batch * 10, 10)})
        sizes.append(world.size())
    computed = cost(README, agreed(Position(), partitions=None))
    assert (computed.remembered_per, computed.bytes_each) == (None, 0)
    assert max(sizes[10:]) <= 1.05 * max(sizes[4:10])


def test_longer_ids_and_more_columns_cost_more() -> None:
    def each(**forms: str) -> float:
        identity = Given("customer", tuple(forms))
        return cost(README, replace(agreed(identity), forms=forms)).bytes_each

    number, text = each(a="integer"), each(a="text")
    assert number < each(a="timestamp") < text < each(a="text", b="integer")

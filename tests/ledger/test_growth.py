"""A pipeline that runs for ever keeps its ledger small: every table stops growing."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from semel.events import Counter, Given, Identity, Position
from semel.protocol import Capability
from semel.sinks import sink
from support.ledger.one_pipeline import LedgerWorld
from support.ledger.small_driver import SmallDriver, messages, payments
from support.sinks.in_memory import Arrivals, MemorySink

Rows = Callable[[int], dict[str, pa.RecordBatch]]


def given_rows(batch: int) -> dict[str, pa.RecordBatch]:
    return {str(at): payments(batch * 20, 20, entities=7) for at in range(2)}


def position_rows(batch: int) -> dict[str, pa.RecordBatch]:
    return {f"t/{at}": messages(batch * 20, 20, partition=at) for at in range(2)}


KINDS: dict[str, tuple[Identity, Rows]] = {
    "position": (Position(), position_rows),
    "increasing ids": (Given(entity="c", event=("id",), increasing=True), given_rows),
    "counters": (Counter(entity="c"), given_rows),
}


@pytest.mark.rows("S18", "O18")
@pytest.mark.parametrize("kind", KINDS)
def test_every_table_stops_growing(world: LedgerWorld, kind: str) -> None:
    identity, rows_of = KINDS[kind]
    sinks = [
        sink(window=10, name="opaque")(lambda _: None),
        MemorySink(name="fenced", can=Capability.REPEATABLE, chunk_rows=5, into=Arrivals()),
    ]
    driver = SmallDriver(world, identity, sinks)
    rows_most: dict[str, list[int]] = {}
    bytes_most: list[int] = []
    for batch in range(300):
        if batch % 50 == 0:
            driver = SmallDriver(world, identity, sinks, f"n{batch}")
        driver.minibatch(batch, rows_of(batch))
        driver.world.owners.beat(driver.run, driver.nonce)
        if batch % 100 == 0:
            rows_most = {table: [*most, 0] for table, most in rows_most.items()}
            bytes_most.append(0)
        for table, count in world.tables().items():
            most = rows_most.setdefault(table, [0] * len(bytes_most))
            most[-1] = max(most[-1], count)
        bytes_most[-1] = max(bytes_most[-1], world.size())
    expected = {"pipelines", "owners", "open", "streams", "events", "sequences"}
    journal = set() if kind == "position" else {"journal"}
    assert rows_most.keys() == expected | journal
    assert rows_most["owners"] == rows_most["open"] == rows_most["pipelines"] == [1, 1, 1]
    assert rows_most["streams"][-1] <= 2 * 2 * 2
    for table, (_, second, third) in rows_most.items():
        assert third <= second, f"{table} grows: {rows_most[table]}"
    assert bytes_most[2] <= bytes_most[1] * 1.1, bytes_most


@pytest.mark.rows("S18")
def test_a_ledger_grows_with_entities_and_not_with_their_events(world: LedgerWorld) -> None:
    identity = Counter(entity="c")
    driver = SmallDriver(world, identity, [sink(window=1_000, name="w")(lambda _: None)])
    sizes = []
    for batch in range(240):
        driver.minibatch(batch, {"0": payments(batch * 500, 500, entities=10)})
        sizes.append(world.size())
    assert max(sizes[160:]) <= max(sizes[80:160]) * 1.05
    assert max(sizes) < 30_000

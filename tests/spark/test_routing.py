"""Entities by range and by directory on Spark: each in its partition, in order, once."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

import semel
from semel.errors import ConfigurationError
from semel.events.routing import Routing
from semel.sinks.files import Files, committed
from semel.spark.deliver import deliver
from support.spark.query_job import source
from support.spark.sessions import Desk, finish, stopped_by


def region(customer: str) -> int:
    """A directory by function: it travels to the executors."""
    return len(customer) % 2 if customer < "c3" else 2


def writer(desk: Desk, frame: Any, **words: Any) -> Any:
    made = deliver(
        frame,
        to=Files(name="lake", url=desk.folder / "lake"),
        name="routed",
        entity="customer",
        event="payment_id",
        ledger=f"sqlite:///{desk.folder / 'ledger.db'}",
        **words,
    )
    made = made.option("checkpointLocation", str(desk.folder / "checkpoint"))
    return made.trigger(availableNow=True)


@pytest.mark.rows("S14")
@pytest.mark.parametrize("way", ["range", "function"])
def test_every_entity_is_delivered_in_its_own_partition_in_order_and_once(
    desk: Desk, way: str
) -> None:
    desk.payments(files=2, rows=20)
    frame = source(desk.settings(), desk.spark).withColumnRenamed("amount", "the.amount")
    customers = sorted({customer for customer, _ in desk.expected})
    routing: Routing = semel.by_range([customers[1], customers[2]])
    if way == "function":
        routing = semel.by_directory(region, partitions=3)
    finish(writer(desk, frame, partition_by=routing))
    shutil.rmtree(desk.folder / "checkpoint")
    finish(writer(desk, frame, partition_by=routing))
    seen: list[tuple[str, int]] = []
    for manifest in committed(desk.folder / "lake/routed/lake"):
        for part, table in zip(manifest.parts, manifest.tables(), strict=True):
            rows = [(row["customer"], row["payment_id"]) for row in table.to_pylist()]
            assert {f"{routing.place(each, 3)}of3" for each, _ in rows} == {part.partition}
            seen += rows
    assert sorted(seen) == sorted(desk.expected)
    for customer in customers:
        own = [event for each, event in seen if each == customer]
        assert own == sorted(own)


def test_what_does_not_fit_is_said_before_anything_is_delivered(desk: Desk) -> None:
    desk.payments(files=1, rows=5)
    frame = source(desk.settings(), desk.spark)
    with pytest.raises(ConfigurationError, match="bounds are integers, and entity column 'custome"):
        writer(desk, frame, partition_by=semel.by_range([5]))
    unknown = stopped_by(writer(desk, frame, partition_by=semel.by_directory({"nobody": 0})))
    assert "is not in the table of by_directory: add it, or pass default=" in unknown
    with pytest.raises(Exception, match="spreads entities by directory, a table, and hash was"):
        finish(writer(desk, frame, partitions=1))

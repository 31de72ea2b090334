"""Measures the engine without Spark: columns, delivery and ledger commits."""

from __future__ import annotations

import json
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import csv
from rich.table import Table

from benchmarks import columns, stores
from benchmarks.rounds import folder
from semel.delivery import Assignment, Driver, PartitionDelivery
from semel.events import Attempt, Position
from semel.ledger import Journal, LedgerClient, open_store
from semel.runtime import Process
from semel.sinks import Function
from semel.verify.servers.postgres import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from benchmarks.progress import BenchmarkProgress

ROWS = 1_000_000
BATCH = 10_000
WINDOW = 100_000
REPETITIONS = 5
LENGTH = None


def measure(
    say: BenchmarkProgress, repetitions: int = REPETITIONS
) -> dict[str, list[dict[str, Any]]]:
    """Run everything; return the rows of each table by its title."""
    found = {}
    with folder() as place:
        parts: list[tuple[str, Callable[[], list[dict[str, Any]]]]] = [
            ("columns: 1M rows, 100k entities, one partition", columns.measure),
            ("engine: a batch function that takes 1M rows", partial(engine, place, repetitions)),
            ("ledger commits per second", partial(commits, place)),
        ]
        for title, part in parts:
            say(title)
            found[title] = part()
    return found


def table(title: str, rows: list[dict[str, Any]]) -> Table:
    """One of the tables, for a terminal."""
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name, justify="left" if name == "what" else "right")
    for row in rows:
        table.add_row(*(f"{v:,.4g}" if isinstance(v, float) else str(v) for v in row.values()))
    return table


# -- the engine


def engine(folder: Path, repetitions: int) -> list[dict[str, Any]]:
    """Compare the engine with calling the same batch function directly, interleaved."""
    batches = _positions(ROWS)
    rows = []
    for what, work in (
        ("makes JSON of its rows", _make_json),
        ("writes CSV with Arrow", _write_csv),
        ("does nothing", _nothing),
    ):
        plain, ours = [], []
        for number in range(repetitions):
            plain.append(_timed(partial(_directly, batches, work)))
            ours.append(_timed(partial(_delivered, folder, batches, work, number)))
        ratios = [mine / other for mine, other in zip(ours, plain, strict=True)]
        rows.append(
            {
                "what": f"a function that {what}, windows of {WINDOW:,}",
                "direct s": statistics.median(plain),
                "semel s": statistics.median(ours),
                "added ns per row": 1e9
                * (statistics.median(ours) - statistics.median(plain))
                / ROWS,
                "added %": 100 * (statistics.median(ratios) - 1),
                "spread %": 100 * (max(ratios) - min(ratios)),
            }
        )
    return rows


def _positions(count: int) -> list[pa.RecordBatch]:
    numbers = np.arange(count)
    table = pa.table(
        {
            "topic": pa.array(["payments"] * count),
            "partition": pa.array(np.zeros(count, np.int32)),
            "offset": pa.array(numbers),
            "customer": pa.array([f"customer-{n % 100_000}" for n in numbers.tolist()]),
            "amount": pa.array(numbers * 0.01),
            "note": pa.array([f"payment number {n}" for n in numbers.tolist()]),
        }
    )
    return list(table.to_batches(max_chunksize=BATCH))


def _write_csv(batch: pa.RecordBatch) -> None:
    csv.write_csv(batch, pa.BufferOutputStream())


def _make_json(batch: pa.RecordBatch) -> None:
    """What a function that posts its batch does at least."""
    json.dumps(batch.to_pylist())


def _nothing(batch: pa.RecordBatch) -> None:
    """The engine alone."""


def _directly(batches: list[pa.RecordBatch], work: Callable[[pa.RecordBatch], None]) -> None:
    """What a user would write without semel: gather a window, call the function."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(len(each) for each in held) >= WINDOW:
            work(pa.Table.from_batches(held).combine_chunks().to_batches()[0])
            held = []
    if held:
        work(pa.Table.from_batches(held).combine_chunks().to_batches()[0])


def _delivered(
    folder: Path, batches: list[pa.RecordBatch], work: Callable[[pa.RecordBatch], None], number: int
) -> None:
    sink = Function(name="bench", function=work, window=WINDOW, batches=True)
    store = open_store(f"sqlite:///{folder}/engine-{work.__name__}-{number}.db")
    client, me = LedgerClient(store, "bench"), Process.here()
    driver = Driver(client, [sink], Position(), me, f"bench-{number}")
    driver.start()
    opening = driver.begin("query", 0)
    assignment = Assignment(
        "bench", opening, Position(), "payments/0", Attempt(driver.run, 1), me, 0
    )
    reports = PartitionDelivery(assignment, [sink], client, Journal(client)).run(batches)
    driver.end(opening, reports)
    store.close()


def _timed(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


# -- commits


def commits(folder: Path) -> list[dict[str, Any]]:
    """Count ledger commits per second on SQLite, and on a PostgreSQL that it starts."""
    found = [
        {"what": f"SQLite, {threads} threads", **stores.measure(url, threads=threads)}
        for threads, url in ((1, f"sqlite:///{folder}/one.db"), (4, f"sqlite:///{folder}/four.db"))
    ]
    for threads, url in _servers():
        found.append(
            {"what": f"PostgreSQL, {threads} threads", **stores.measure(url, threads=threads)}
        )
    names = list(dict.fromkeys(name for row in found for name in row))
    return [{name: row.get(name, "") for name in names} for row in found]


def _servers() -> Iterator[tuple[int, str]]:
    server = PostgresServer(durable=True)
    try:
        for threads in (1, 16):
            yield threads, server.url(server.create())
    finally:
        server.close()

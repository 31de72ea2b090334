"""Measures counters in Redis: exactly once through the sink, against what people write by hand.

Always true: both sides count the same events into the same keys of the same server, interleaved.
The peers mark every event with `SET ... NX` and count those that were new: record by record, and in
pipelines with two round trips a batch; a crash in between loses what was marked and not counted.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from benchmarks.progress import Length
from benchmarks.rounds import folder, rounds
from benchmarks.rows import Comparison, compared
from semel.delivery import Assignment, Driver, PartitionDelivery
from semel.events import Attempt, Position
from semel.ledger import Journal, LedgerClient, open_store
from semel.runtime import Process
from semel.sinks import Redis
from semel.verify.servers.redis import RedisServer

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.progress import BenchmarkProgress

ROWS = 200_000
REPETITIONS = 3
LENGTH = Length(sides=4, run_s=4.0)
SINGLE_PART = 10
"""A round trip per record is slow: it is measured on this part of the events."""

CHUNK = 2_000
CUSTOMERS = 10_000
REMEMBERS_S = 86_400


@dataclass
class RedisBenchmark:
    """One server at which both sides alternate."""

    server: RedisServer
    folder: Path
    rows: int
    batches: list[pa.RecordBatch] = field(init=False)
    _run_number: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.batches = _payments(self.rows)

    def semel(self, chunk_rows: int = CHUNK) -> float:
        """Events per second through the sink, ledger and all."""
        self._run_number += 1
        sink = Redis(
            name="counters",
            url=self.server.url(),
            command="INCRBY",
            key="balance:{customer}",
            arguments=("{amount}",),
            chunk_rows=chunk_rows,
        )
        store = open_store(f"sqlite:///{self.folder}/ledger-{self._run_number}.db")
        client, me = LedgerClient(store, "bench"), Process.here()
        driver = Driver(client, [sink], Position(), me, f"bench-{self._run_number}")
        driver.start()
        began = perf_counter()
        opening = driver.begin("query", 0)
        attempt = Attempt(driver.run, 1)
        assignment = Assignment("bench", opening, Position(), "payments/0", attempt, me, 0)
        reports = PartitionDelivery(assignment, [sink], client, Journal(client)).run(self.batches)
        driver.end(opening, reports)
        took = perf_counter() - began
        store.close()
        self._settle()
        return self.rows / took

    def peer(self) -> float:
        """Events per second with a mark for each event."""
        from redis import Redis as Client

        client = Client.from_url(self.server.url())
        began = perf_counter()
        for batch in self.batches:
            marks, counts = client.pipeline(transaction=False), client.pipeline(transaction=False)
            ids = batch.column("offset").to_pylist()
            for number in ids:
                marks.set(f"seen:{number}", 1, nx=True, ex=REMEMBERS_S)
            customers = batch.column("customer").to_pylist()
            amounts = batch.column("amount").to_pylist()
            for new, customer, amount in zip(marks.execute(), customers, amounts, strict=True):
                if new:
                    counts.incrby(f"balance:{customer}", amount)
            counts.execute()
        took = perf_counter() - began
        client.close()
        self._settle()
        return self.rows / took

    def peer_by_record(self) -> float:
        """Events per second with two round trips for each event, as it is often written."""
        from redis import Redis as Client

        client = Client.from_url(self.server.url())
        began = perf_counter()
        for batch in self.batches:
            for row in batch.select(["offset", "customer", "amount"]).to_pylist():
                if client.set(f"seen:{row['offset']}", 1, nx=True, ex=REMEMBERS_S):
                    client.incrby(f"balance:{row['customer']}", row["amount"])
        took = perf_counter() - began
        client.close()
        self._settle()
        return self.rows / took

    def _settle(self) -> None:
        """See that every event counted, once; then start again."""
        from redis import Redis as Client

        client = Client.from_url(self.server.url())
        keys = [f"balance:{number}" for number in range(CUSTOMERS)]
        found = sum(int(value or 0) for value in client.mget(keys))
        client.close()
        wanted = sum(int(batch.column("amount").to_numpy().sum()) for batch in self.batches)
        if found != wanted:
            raise AssertionError(f"{found} was counted instead of {wanted}")
        self.server.empty()


def measure(
    say: BenchmarkProgress, repetitions: int = REPETITIONS, rows: int = ROWS
) -> list[Comparison]:
    """Run everything; give the rows of the table."""
    with folder() as place, closing(RedisServer()) as server:
        bench = RedisBenchmark(server, place, rows)
        few = RedisBenchmark(server, place / "few", rows // SINGLE_PART)
        few.folder.mkdir()
        by_record = rounds(
            say,
            "counters",
            repetitions,
            {"semel": few.semel, "a record at a time": few.peer_by_record},
            "events/s",
        )
        sides = {"semel": bench.semel, "pipelined": bench.peer}
        piped = rounds(say, "counters", repetitions, sides, "events/s")
    rows_of = {
        "a record at a time": (by_record, "SETNX, then INCRBY, record by record"),
        "pipelined": (piped, f"SET NX and INCRBY in pipelines of {CHUNK:,}"),
    }
    return [
        compared(
            f"INCRBY, chunks of {CHUNK:,}; peer: {what}",
            list(zip(found["semel"], found[name], strict=True))[1:],
            "events/s",
        )
        for name, (found, what) in rows_of.items()
    ]


def _payments(count: int) -> list[pa.RecordBatch]:
    numbers = np.arange(count)
    table = pa.table(
        {
            "topic": pa.array(["payments"] * count),
            "partition": pa.array(np.zeros(count, np.int32)),
            "offset": pa.array(numbers),
            "customer": pa.array((numbers * 7919 % CUSTOMERS).astype(str)),
            "amount": pa.array(numbers % 100),
        }
    )
    return list(table.to_batches(max_chunksize=CHUNK))

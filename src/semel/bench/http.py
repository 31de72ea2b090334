"""Measures ordered calls over HTTP from one process, against a program without order and ledger.

Always true: both sides call the same service, which takes its time to answer, with as many calls in
flight; the peer is aiohttp as a careful person writes it, and promises nothing after a crash. What
the service counted is looked at after every turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from semel.bench.http_witness import HttpWitness
from semel.bench.rows import Row, compared
from semel.bench.turns import folder, turns
from semel.delivery import Assignment, Driver, PartitionDelivery
from semel.events import Attempt, Given, sort
from semel.ledger.journal import Journal
from semel.ledger.processes import Process
from semel.ledger.scribe import Scribe
from semel.ledger.stores import open_store
from semel.sinks.http import Http

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CALLS = 40_000
ENTITIES = 10_000
IN_FLIGHT = 1_000
SERVICE_S = 0.1
REPETITIONS = 3
BATCH = 10_000
IDENTITY = Given(entity="customer", event=("payment_id",))


@dataclass
class Bench:
    """One service that both sides call in turns."""

    witness: HttpWitness
    folder: Path
    calls: int
    in_flight: int
    _turn: int = 0

    def semel(self, **settings: Any) -> float:
        """Calls per second through engine and ledger, in order per entity."""
        self.witness.forget()
        sink = Http(
            name="bank",
            url=f"{self.witness.url}/charges",
            concurrency=self.in_flight,
            **settings,
        )
        batches = _payments(self.calls)
        self._turn += 1
        store = open_store(f"sqlite:///{self.folder}/ledger-{self._turn}.db")
        began = perf_counter()
        scribe, me = Scribe(store, "bench"), Process.here()
        driver = Driver(scribe, [sink], IDENTITY, me, f"bench-{self._turn}")
        driver.start()
        opening = driver.begin("query", 0)
        assignment = Assignment("bench", opening, IDENTITY, "0", Attempt(driver.run, 1), me, 0)
        reports = PartitionDelivery(assignment, [sink], scribe, Journal(scribe)).run(batches)
        driver.end(opening, reports)
        took = perf_counter() - began
        store.close()
        self._look()
        return self.calls / took

    def peer(self) -> float:
        """Calls per second of the plain program."""
        import uvloop

        self.witness.forget()
        bodies = [row for batch in _payments(self.calls) for row in batch.to_pylist()]
        began = perf_counter()
        uvloop.run(_plain(f"{self.witness.url}/charges", bodies, self.in_flight))
        took = perf_counter() - began
        self._look(ordered=False)
        return self.calls / took

    def _look(self, *, ordered: bool = True) -> None:
        figures = self.witness.figures()
        if figures["requests"] != self.calls or (ordered and figures["overlaps"]):
            raise AssertionError(f"{self.calls} calls were to be made, each once: {figures}")


async def _plain(url: str, bodies: list[dict[str, Any]], in_flight: int) -> None:
    """Post every body, in no order."""
    import aiohttp

    waiting = deque(bodies)

    async def work(client: aiohttp.ClientSession) -> None:
        while waiting:
            async with client.post(url, json=waiting.popleft()) as reply:
                await reply.read()
                reply.raise_for_status()

    connector = aiohttp.TCPConnector(limit=in_flight)
    async with aiohttp.ClientSession(connector=connector) as client:
        await asyncio.gather(*(work(client) for _ in range(in_flight)))


def _payments(count: int) -> list[pa.RecordBatch]:
    """Make the payments of one partition, in its order."""
    numbers = np.arange(count)
    table = pa.table(
        {
            "customer": pa.array([f"customer-{n % ENTITIES}" for n in numbers.tolist()]),
            "payment_id": pa.array(numbers),
            "amount": pa.array(numbers % 1_000),
        }
    )
    batch = sort(table.combine_chunks().to_batches()[0], IDENTITY)
    return [batch.slice(start, BATCH) for start in range(0, count, BATCH)]


def measure(
    say: Callable[[str], None] = lambda _: None,
    repetitions: int = REPETITIONS,
    calls: int = CALLS,
    in_flight: int = IN_FLIGHT,
) -> list[Row]:
    """Run everything; give the rows of the table."""
    repeatable, opaque = "Idempotency-Key (REPEATABLE)", f"windows of {in_flight:,} (OPAQUE)"
    with folder() as place, HttpWitness(delay_s=SERVICE_S) as witness:
        bench = Bench(witness, place, calls, in_flight)
        found = turns(
            say,
            f"calls at {SERVICE_S * 1000:.0f} ms",
            repetitions,
            {
                repeatable: lambda: bench.semel(idempotency=True),
                opaque: lambda: bench.semel(window=in_flight),
                "plain": bench.peer,
            },
        )
    return [
        compared(
            f"ordered calls, {what}; peer: aiohttp, no order, no promise",
            list(zip(found[what], found["plain"], strict=True))[1:],
            "calls/s",
        )
        for what in (repeatable, opaque)
    ]

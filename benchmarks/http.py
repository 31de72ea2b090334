"""Measures ordered calls over HTTP from one process, against a plain program and a durable one.

Always true: all sides call the same service, which takes its time to answer, with as many calls in
flight. The plain one is aiohttp as a careful person writes it, without order, and promises nothing
after a crash; the durable one is DBOS on PostgreSQL, with a step for each call and a workflow for
each entity. What the service counted is looked at after every run.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections import deque
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from benchmarks.environments import python_with
from benchmarks.progress import Length
from benchmarks.rounds import folder, rounds
from benchmarks.rows import Comparison, compared
from semel.delivery import Assignment, Driver, PartitionDelivery
from semel.events import Attempt, Given, sort
from semel.ledger import Journal, LedgerClient, open_store
from semel.runtime import Process
from semel.sinks import Http
from semel.verify.servers.http_witness import HttpWitness
from semel.verify.servers.postgres import PostgresServer

if TYPE_CHECKING:
    from benchmarks.progress import BenchmarkProgress

CALLS = 40_000
ENTITIES = 10_000
DURABLE_SHARE = 10
"""The durable side makes a tenth of the calls, with as many in flight: a rate needs no more."""
DBOS = "3.3.0"
IN_FLIGHT = 1_000
SERVICE_S = 0.1
REPETITIONS = 3
LENGTH = Length(sides=4, run_s=8.0)
BATCH = 10_000
IDENTITY = Given(entity="customer", event=("payment_id",))


@dataclass
class HttpBenchmark:
    """One service that both sides call alternately."""

    witness: HttpWitness
    server: PostgresServer
    folder: Path
    calls: int
    in_flight: int
    _run_number: int = 0

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
        self._run_number += 1
        store = open_store(f"sqlite:///{self.folder}/ledger-{self._run_number}.db")
        began = perf_counter()
        client, me = LedgerClient(store, "bench"), Process.here()
        driver = Driver(client, [sink], IDENTITY, me, f"bench-{self._run_number}")
        driver.start()
        opening = driver.begin("query", 0)
        assignment = Assignment("bench", opening, IDENTITY, "0", Attempt(driver.run, 1), me, 0)
        reports = PartitionDelivery(assignment, [sink], client, Journal(client)).run(batches)
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

    def durable(self) -> float:
        """Calls per second of the durable-execution engine, in order per entity."""
        self.witness.forget()
        bodies = [row for batch in _payments(self.calls) for row in batch.to_pylist()]
        entities = [bodies[at::ENTITIES] for at in range(min(ENTITIES, self.calls))]
        entities = entities[: max(1, len(entities) // DURABLE_SHARE)]
        calls = sum(map(len, entities))
        database = self.server.create()
        told = {
            "url": f"{self.witness.url}/charges",
            "database": self.server.url(database),
            "in_flight": self.in_flight,
            "entities": entities,
        }
        python = python_with(f"dbos-{DBOS}", f"dbos=={DBOS}", "aiohttp==3.14.5", "uvloop==0.23.0")
        script = Path(__file__).with_name("durable_job.py")
        done = subprocess.run(  # noqa: S603 - our own words
            [str(python), "-P", str(script)],
            input=json.dumps(told) + "\n",
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"DBOS ended: {done.stderr[-2000:]}")
        self.server.drop(database)
        self._look(calls)
        return calls / float(json.loads(done.stdout))

    def _look(self, calls: int | None = None, *, ordered: bool = True) -> None:
        wanted, figures = calls or self.calls, self.witness.figures()
        if figures["requests"] != wanted or (ordered and figures["overlaps"]):
            raise AssertionError(f"{wanted} calls were to be made, each once: {figures}")


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
    say: BenchmarkProgress,
    repetitions: int = REPETITIONS,
    calls: int = CALLS,
    in_flight: int = IN_FLIGHT,
) -> list[Comparison]:
    """Run everything; give the rows of the table."""
    repeatable, opaque = "Idempotency-Key (REPEATABLE)", f"windows of {in_flight:,} (OPAQUE)"
    plain, durable = "aiohttp, no order, no promise", "DBOS, durable execution"
    with (
        folder() as place,
        closing(PostgresServer(durable=True)) as server,
        HttpWitness(delay_s=SERVICE_S) as witness,
    ):
        bench = HttpBenchmark(witness, server, place, calls, in_flight)
        found = rounds(
            say,
            f"calls at {SERVICE_S * 1000:.0f} ms",
            repetitions,
            {
                repeatable: lambda: bench.semel(idempotency=True),
                opaque: lambda: bench.semel(window=in_flight),
                plain: bench.peer,
                durable: bench.durable,
            },
            "calls/s",
        )
    return [
        compared(
            f"ordered calls, {what}; peer: {peer}",
            list(zip(found[what], found[peer], strict=True))[1:],
            "calls/s",
        )
        for peer in (plain, durable)
        for what in (repeatable, opaque)
    ]

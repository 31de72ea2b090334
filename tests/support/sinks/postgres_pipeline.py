"""A PostgreSQL destination at hand: sessions, chunks and minibatches without Spark, and a wire that
can be cut or frozen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa

from semel.delivery import Assignment, Driver, PartitionDelivery
from semel.events import Attempt, Chunk, Given, Identity, Minibatch
from semel.ledger.client import LedgerClient
from semel.ledger.journal import Journal
from semel.ledger.rows import ParkedRow
from semel.ledger.store.opening import open_store
from semel.ledger.verbs.parked import read_parked
from semel.runtime import Process
from semel.sinks import Progress, Retry, Target
from semel.sinks.postgres import Postgres
from semel.sinks.postgres.session import PostgresSession
from semel.verify.servers.proxy import Rule

GIVEN = Given(entity="customer", event=("id",))
FIRST = Minibatch(1, 0)
PATIENT = Retry(first_s=0.05, most_s=0.2, for_s=5.0)


def batch(ids: Iterable[int], **columns: Any) -> pa.RecordBatch:
    """Payments of three customers; other columns as they are given."""
    made = list(ids)
    return pa.RecordBatch.from_pydict(
        {
            "customer": pa.array([f"c{each % 3}" for each in made]),
            "id": pa.array(made, pa.int64()),
            "amount": pa.array([each * 10 for each in made], pa.int64()),
            **columns,
        }
    )


def chunk_of(rows: pa.RecordBatch, start: int = 0, identity: Identity = GIVEN) -> Chunk:
    """All rows as a chunk of their partition's order, which begins at `start`."""
    stamped = identity.stamper("0", last={}).stamp(rows).renumber(start)
    stop = start + len(rows)
    return Chunk(stamped, start, stop, f"pay/out/1.0/0/0/{start}-{stop}", 1, "pay/out/")


@dataclass
class PostgresDesk:
    """A database and what a test asks of it."""

    url: str
    folder: Path
    made: list[PostgresSession] = field(default_factory=list)

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Do one statement from the side."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def sink(self, **settings: Any) -> Postgres:
        usual: dict[str, Any] = {"name": "out", "url": self.url, "retry": PATIENT}
        return Postgres(**{**usual, **settings})

    def open(
        self, sink: Postgres, task: int = 1, minibatch: Minibatch = FIRST, run: int = 1
    ) -> PostgresSession:
        """A session of an attempt; it is closed with the test."""
        target = Target("pay", sink.name, minibatch, "0", Attempt(run, task))
        session = sink.open(target)
        self.made.append(session)
        return session

    def close(self) -> None:
        for session in self.made:
            session.close()

    def deliver(
        self, session: PostgresSession, chunk: Chunk, task: int = 1, minibatch: Minibatch = FIRST
    ) -> None:
        """Deliver a chunk with the progress that the engine would give it."""
        session.deliver_with(chunk, progress_of(chunk, task, minibatch))

    def minibatch(
        self,
        sink: Postgres,
        rows: Iterable[pa.RecordBatch],
        number: int = 0,
        *,
        nonce: str = "n1",
        identity: Identity = GIVEN,
        ledger: str | None = None,
    ) -> None:
        """Run a whole minibatch through the engine, as one run of one driver, and complete it."""
        store = open_store(ledger or f"sqlite:///{self.folder}/ledger.db")
        try:
            client, me = LedgerClient(store, "pay"), Process.here()
            driver = Driver(client, [sink], identity, me, nonce)
            driver.start()
            opening = driver.begin("query", number)
            attempt = Attempt(driver.run, number + 1)
            assignment = Assignment("pay", opening, identity, "0", attempt, me, 0)
            delivery = PartitionDelivery(assignment, [sink], client, Journal(client))
            driver.end(opening, delivery.run(rows))
        finally:
            store.close()

    def parked(self) -> list[ParkedRow]:
        """What stands parked in the ledger."""
        store = open_store(f"sqlite:///{self.folder}/ledger.db")
        try:
            return [row for _, row, _ in read_parked(LedgerClient(store, "pay"), "out")]
        finally:
            store.close()

    def ledger_text(self) -> str:
        """Everything that the ledger holds, as text."""
        return (self.folder / "ledger.db").read_bytes().decode("latin-1")


def progress_of(chunk: Chunk, task: int = 1, minibatch: Minibatch = FIRST) -> Progress:
    return Progress(
        minibatch=minibatch,
        attempt=Attempt(1, task),
        start=chunk.start,
        done=chunk.stop,
        osn=chunk.stop + 1,
        digest=f"digest-{chunk.stop}",
        sort_key=chunk.rows.sort_key(len(chunk) - 1),
        ids=chunk.rows.id_sets(),
    )


def once(word: bytes, what: str, number: int = 1) -> Rule:
    """Let something happen at the n-th time that the client says a word, and never again."""
    seen = 0

    def rule(said: bytes) -> str:
        nonlocal seen
        if word in said:
            seen += 1
            if seen == number:
                return what
        return "pass"

    return rule

"""Write a sink that is exactly-once: `balance = balance + x` in SQLite (TRANSACTIONAL).

`python examples/own_sink.py [FOLDER]` books payments, deletes the checkpoint and reads them all
again; the balances do not change. Progress row and effect are one transaction of the destination.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
import tempfile
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import semel
from semel.sinks import DELIVERED, Capability, Progress, Receipt, Sink, Target
from semel.spark import make_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from semel.sinks import Chunk

TABLES = """
create table if not exists balances (customer text primary key, balance integer not null);
create table if not exists progress (place text primary key, row text not null);
"""


@dataclass(frozen=True, kw_only=True)
class Balances(Sink):
    """The description: frozen, picklable, the same on the driver and on every executor."""

    path: str

    @property
    def capability(self) -> Capability:
        """Return the claim that `BalancesSession` has to fulfil."""
        return Capability.TRANSACTIONAL

    def open(self, target: Target) -> BalancesSession:
        """Connect, on the executor."""
        connection = sqlite3.connect(self.path, timeout=30, isolation_level=None)
        connection.execute("pragma synchronous = full")  # keep what was acknowledged
        connection.executescript(TABLES)
        return BalancesSession(connection, target)


class BalancesSession:
    """One connection of one attempt at one partition."""

    def __init__(self, connection: sqlite3.Connection, target: Target) -> None:
        self.connection = connection
        self.target = target
        self.place = json.dumps([target.pipeline, target.sink, target.partition])

    def take_over(self) -> Progress | None:
        """Write this attempt into the progress row; return the row as it was."""
        minibatch, attempt = self.target.minibatch, self.target.attempt
        with self.transaction():
            stood = self.read()
            before = stood or Progress(minibatch, attempt)
            self.write(before.taken_by(minibatch, attempt))
        return stood

    def deliver_with(self, chunk: Chunk, progress: Progress) -> Receipt:
        """Move the row and book the payments: both or neither."""
        with self.transaction():
            stood = self.read()
            progress.require_kept(stood, self.place)
            if stood is not None and stood.minibatch == progress.minibatch:
                if stood.done > progress.start:
                    raise semel.Fenced("an earlier call of this attempt was committed")
                progress = replace(progress, ids=stood.ids | progress.ids)
            self.write(progress)
            for event in chunk.events():
                self.connection.execute(
                    "insert into balances values (?, ?)"
                    " on conflict (customer) do update set balance = balance + excluded.balance",
                    (event.entity, event.value["amount"]),
                )
        return DELIVERED

    def close(self) -> None:
        """Close the connection; this rolls back an open transaction."""
        self.connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all or nothing. After an error of COMMIT semel takes the row over and asks."""
        try:
            self.connection.execute("begin immediate")  # lock first, then read
        except sqlite3.OperationalError as error:
            raise semel.NotDelivered(str(error)) from error
        try:
            yield
            self.connection.execute("commit")
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("rollback")
            raise

    def read(self) -> Progress | None:
        """Return the row. Raises `Fenced` if it names a later attempt or minibatch."""
        found = self.connection.execute(
            "select row from progress where place = ?", (self.place,)
        ).fetchone()
        if found is None:
            return None
        stood = Progress.from_json(json.loads(found[0]))
        target = self.target
        if stood.attempt > target.attempt or stood.minibatch > target.minibatch:
            raise semel.Fenced(f"the progress row names attempt {stood.attempt}")
        return stood

    def write(self, progress: Progress) -> None:
        """Write the row."""
        self.connection.execute(
            "insert or replace into progress values (?, ?)",
            (self.place, json.dumps(progress.to_json())),
        )


def run(spark: SparkSession, folder: Path) -> dict[str, int]:
    """Book the payments that have arrived; return the balances."""
    bank = folder / "bank.db"
    schema = "customer string, payment_id bigint, amount bigint"
    payments = spark.readStream.schema(schema).json(str(folder / "payments"))
    query = (
        semel.deliver(
            payments,
            to=Balances(name="balances", path=str(bank), chunk_rows=2),
            name="bookings",
            entity="customer",
            event="payment_id",
            partitions=2,
            ledger=f"sqlite:///{folder}/ledger.db",
        )
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    with closing(sqlite3.connect(bank)) as connection:
        return dict(connection.execute("select * from balances order by customer"))


def main(folder: Path) -> None:
    """Book twelve payments, delete the checkpoint, and book again."""
    folder = folder.absolute()
    (folder / "payments").mkdir(parents=True, exist_ok=True)
    rows = [{"customer": f"c{n % 3}", "payment_id": n, "amount": n} for n in range(12)]
    (folder / "payments/1.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spark = make_session("own sink")
    print(f"booked: {run(spark, folder)}")
    shutil.rmtree(folder / "checkpoint")
    print(f"checkpoint lost, read again: {run(spark, folder)}")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="semel-own-sink-")))

"""Measures PostgreSQL on Spark: COPY against Spark's JDBC, set-based updates against a dedup table.

Always true: both sides write the same rows to the same durable server from the same session, in
turns, into tables of their own, and the tables are looked at afterwards. Spark's JDBC append is
at-least-once; the dedup table is exactly-once as people write it by hand.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semel.bench import overhead
from semel.bench.rows import Row, compared
from semel.bench.servers import PostgresServer
from semel.sinks.postgres import Postgres
from semel.spark.deliver import deliver
from semel.spark.session import make_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

ROWS = 1_000_000
BOOKED_PART = 5
"""A statement per row is slow: bookings are measured on this part of the rows."""

REPETITIONS = 5
CUSTOMERS = 10_000
CHUNK = 50_000
DRIVER = "org.postgresql:postgresql:42.7.4"
PAYMENTS = (
    "topic text, partition int, {offset} bigint, customer text, payment_id bigint, payload text"
)
APPENDED = "select count(*), count(distinct payment_id) from {table}"
BOOKED = "select sum(balance)::bigint, sum(balance)::bigint from {table}"
OPEN = "insert into {table} select n::text, 0 from generate_series(0, {last}) n"
ADD_UP = (
    "update {table} b set balance = balance + s.amount from"
    " (select customer, count(*) as amount from semel_batch group by customer) s"
    " where b.customer = s.customer"
)
MARK = "insert into {seen} values (%s) on conflict do nothing"
ADD = "update {table} set balance = balance + 1 where customer = %s"
AT_ONCE = (
    "with new as (insert into {seen} values (%s) on conflict do nothing returning 1)"
    " update {table} set balance = balance + 1 where customer = %s and exists (select from new)"
)
BY_HAND = (AT_ONCE, MARK, ADD)


@dataclass
class Bench(overhead.Bench):
    """One session and one server at which both sides take turns."""

    server: PostgresServer = None  # type: ignore[assignment]

    def append(self) -> float:
        """Milliseconds of a micro-batch that semel appends with COPY."""
        table = self._payments()
        sink = Postgres(name="bench", url=self.server.url(), table=table)
        took = self._deliver(self.rows, sink, identity="position")
        self._see(APPENDED.format(table=table), self.rows)
        return took

    def jdbc(self, **options: str) -> float:
        """Milliseconds of a micro-batch that Spark appends through JDBC."""
        table = self._payments()
        query = options.pop("query", "")
        told = {
            "url": f"jdbc:postgresql://127.0.0.1:{self.server.port}/postgres{query}",
            "driver": "org.postgresql.Driver",
            "user": self.server.user,
            "password": self.server.password,
            "dbtable": table,
            **options,
        }

        def batch(frame: Any, number: int) -> None:
            if number < overhead.BATCHES:
                frame.write.format("jdbc").options(**told).mode("append").save()

        took = self._run(self.source(self.rows).writeStream.foreachBatch(batch))
        self._see(APPENDED.format(table=table), self.rows)
        return took

    def booked(self) -> float:
        """Milliseconds of a micro-batch that semel books with one statement per chunk."""
        table = self._balances()
        sink = Postgres(
            name="bench", url=self.server.url(), apply=ADD_UP.format(table=table), chunk_rows=CHUNK
        )
        rows = self.rows // BOOKED_PART
        ids = {"entity": "customer", "event": "payment_id", "increasing": True}
        took = self._deliver(rows, sink, partitions=overhead.PARTITIONS, **ids)
        self._see(BOOKED.format(table=table), rows)
        return took

    def by_hand(self, *, at_once: bool) -> float:
        """Milliseconds of a micro-batch that goes through a dedup table, row by row: with one
        statement each, sent ahead of the answers; or with two, the second if the first was new.
        """
        table = self._balances()
        seen = f"seen_{self._number}"
        self.server.execute(f"create table {seen} (payment_id bigint primary key)")
        rows, url = self.rows // BOOKED_PART, self.server.url()
        one, mark, add = (each.format(seen=seen, table=table).encode() for each in BY_HAND)

        def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import psycopg

            with psycopg.connect(url) as connection, connection.cursor() as cursor:
                for each in batches:
                    ids, customers = each.column("payment_id"), each.column("customer")
                    given = list(zip(ids.to_pylist(), customers.to_pylist(), strict=True))
                    if at_once:
                        cursor.executemany(one, given)
                        continue
                    for payment, customer in given:
                        if cursor.execute(mark, (payment,)).rowcount:
                            cursor.execute(add, (customer,))
            yield from ()

        def batch(frame: Any, number: int) -> None:
            if number < overhead.BATCHES:
                apart = frame.repartition(overhead.PARTITIONS, "customer")  # or they deadlock
                apart.mapInArrow(write, "nothing int").collect()

        took = self._run(self.source(rows).writeStream.foreachBatch(batch))
        self._see(BOOKED.format(table=table), rows)
        return took

    def _deliver(self, rows: int, sink: Postgres, **words: Any) -> float:
        ledger = f"sqlite:///{self.folder}/ledger-{self._number}.db"
        writer = deliver(self.source(rows), to=sink, name="bench", ledger=ledger, **words)
        try:
            return self._run(writer)
        finally:
            self.server.execute("drop table semel_progress, semel_progress_ids")

    def _payments(self) -> str:
        table = f"payments_{self._number}"
        columns = PAYMENTS.format(offset='"offset"')
        self.server.execute(f"create table {table} ({columns})")
        return table

    def _balances(self) -> str:
        table = f"balances_{self._number}"
        self.server.execute(f"create table {table} (customer text primary key, balance bigint)")
        self.server.execute(OPEN.format(table=table, last=CUSTOMERS - 1))
        return table

    def _see(self, statement: str, rows: int) -> None:
        """What was measured has arrived, and the ids tell that it did once."""
        [(count, distinct)] = self.server.execute(statement)
        if not isinstance(count, int) or count < rows * overhead.BATCHES or count != distinct:
            raise AssertionError(f"{statement}: {count} rows of {distinct} ids")


def measure(
    say: Callable[[str], None] = lambda _: None, repetitions: int = REPETITIONS, rows: int = ROWS
) -> list[Row]:
    """Run everything; give the rows of the table. Without JDBC's driver its rows are left out."""
    folder = Path(tempfile.mkdtemp(prefix="semel-bench-"))
    say("fetching PostgreSQL's JDBC driver")
    jar = jdbc_driver()
    if jar is None:
        say(f"{DRIVER} cannot be had (mvn is missing, or the network): JDBC is left out")
    settings = {**overhead.SETTINGS, **({} if jar is None else {"spark.jars": str(jar)})}
    server = PostgresServer(durable=True)
    spark = make_session("semel bench postgres", settings=settings)
    try:
        bench = Bench(spark, folder, say, repetitions, rows, server=server)
        return [*([] if jar is None else appends(bench)), *bookings(bench)]
    finally:
        spark.stop()
        server.close()
        shutil.rmtree(folder, ignore_errors=True)


def appends(bench: Bench) -> list[Row]:
    """COPY in semel's transactions against Spark's own append: as it comes, and tuned."""
    tuned = {"query": "?reWriteBatchedInserts=true", "batchsize": "10000"}
    peers: list[tuple[str, dict[str, str]]] = [
        ("append; peer: Spark's JDBC as it comes", {}),
        ("append; peer: Spark's JDBC, reWriteBatchedInserts, batchsize 10,000", tuned),
    ]
    return [
        _rates(what, bench.rows, bench.pairs(what, bench.append, partial(bench.jdbc, **options)))
        for what, options in peers
    ]


def bookings(bench: Bench) -> list[Row]:
    """`balance = balance + x` against a dedup table with ON CONFLICT per row."""
    peers = [
        ("balance = balance + x; peer: dedup table, then an update, per row", False),
        ("balance = balance + x; peer: both as one statement per row, pipelined", True),
    ]
    rows = bench.rows // BOOKED_PART
    return [
        _rates(what, rows, bench.pairs(what, bench.booked, partial(bench.by_hand, at_once=at_once)))
        for what, at_once in peers
    ]


def _rates(what: str, rows: int, pairs: list[tuple[float, float]]) -> Row:
    return compared(what, [(rows / a * 1000, rows / b * 1000) for a, b in pairs], "rows/s")


def jdbc_driver() -> Path | None:
    """Give the driver's jar, from the cache or through Maven; None where it cannot be had."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "semel" / "jdbc"
    jar = cache / "postgresql-{2}.jar".format(*DRIVER.split(":"))
    if jar.exists():
        return jar
    maven = shutil.which("mvn")
    if maven is None:
        return None
    cache.mkdir(parents=True, exist_ok=True)
    goal = "org.apache.maven.plugins:maven-dependency-plugin:copy"
    command = [maven, "-q", "-B", goal, f"-Dartifact={DRIVER}", f"-DoutputDirectory={cache}"]
    subprocess.run(  # noqa: S603 - our own words
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, timeout=300
    )
    return jar if jar.exists() else None

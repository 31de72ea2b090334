"""Measures PostgreSQL on Spark: COPY against Spark's JDBC, set-based updates against a dedup table.

Always true: both sides write the same rows to the same durable server from the same session,
interleaved, into tables of their own, and the tables are checked afterwards. Spark's JDBC append is
at-least-once; the dedup table is exactly-once as people write it by hand.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks import overhead
from benchmarks.progress import Length
from benchmarks.rounds import folder, rounds, session
from benchmarks.rows import Comparison, compared
from semel.sinks import Postgres
from semel.spark.deliver import deliver
from semel.verify.servers.postgres import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from benchmarks.progress import BenchmarkProgress

ROWS = 400_000
BOOKED_PART = 8
"""A statement per row is slow: bookings are measured on this part of the rows."""

REPETITIONS = 3
LENGTH = Length(sides=9, run_s=8.0)
BATCHES = 3
WAL = "8GB"
"""So much is written before a checkpoint is due, so that none falls into a run."""

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
AS_A_SET = (
    "with given as (select * from unnest(%s::bigint[], %s::text[]) as g (payment_id, customer)),"
    " new as (insert into {seen} select payment_id from given on conflict do nothing"
    " returning payment_id)"
    " update {table} b set balance = balance + s.amount from (select g.customer, count(*) as amount"
    " from given g join new using (payment_id) group by g.customer) s where b.customer = s.customer"
)


@dataclass
class PostgresBenchmark(overhead.SparkBenchmark):
    """One session and one server at which both sides alternate."""

    server: PostgresServer = None  # type: ignore[assignment]

    def append(self) -> float:
        """Milliseconds of a micro-batch that semel appends with COPY."""
        table = self._payments()
        sink = Postgres(name="bench", url=self.server.url(), table=table, chunk_rows=CHUNK)
        took = self._deliver(self.rows, sink, identity="position")
        self._see(APPENDED, table, self.rows)
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
            if number < self.batches:
                frame.write.format("jdbc").options(**told).mode("append").save()

        took = self._run(self.source(self.rows).writeStream.foreachBatch(batch))
        self._see(APPENDED, table, self.rows)
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
        self._see(BOOKED, table, rows)
        return took

    def by_hand(self, write: Callable[[Any, list[tuple[int, str]], str, str], None]) -> float:
        """Milliseconds of a micro-batch that goes through a dedup table, as `write` does it."""
        table = self._balances()
        seen = f"seen_{self._number}"
        self.server.execute(f"create table {seen} (payment_id bigint primary key)")
        rows, url = self.rows // BOOKED_PART, self.server.url()

        def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import psycopg

            with psycopg.connect(url) as connection, connection.cursor() as cursor:
                for each in batches:
                    ids, customers = each.column("payment_id"), each.column("customer")
                    given = list(zip(ids.to_pylist(), customers.to_pylist(), strict=True))
                    write(cursor, given, seen, table)
            yield from ()

        def batch(frame: Any, number: int) -> None:
            if number < self.batches:
                apart = frame.repartition(overhead.PARTITIONS, "customer")  # or they deadlock
                apart.mapInArrow(task, "nothing int").collect()

        took = self._run(self.source(rows).writeStream.foreachBatch(batch))
        self._see(BOOKED, table, rows)
        self.server.execute(f"drop table {seen}")
        return took

    def copied_by_hand(self) -> float:
        """Milliseconds of a micro-batch that goes by COPY too, a transaction for each partition,
        without progress, ledger or promise: the fastest that PySpark lets a careful person write.
        """
        table, url = self._payments(), self.server.url()

        def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import psycopg
            import pyarrow as pa
            from pyarrow import csv

            form = csv.WriteOptions(include_header=False)
            into = f"copy {table} from stdin (format csv)".encode()
            with psycopg.connect(url) as connection, connection.cursor().copy(into) as copy:
                for each in batches:
                    out = pa.BufferOutputStream()
                    csv.write_csv(each, out, form)
                    copy.write(memoryview(out.getvalue()))
            yield from ()

        def batch(frame: Any, number: int) -> None:
            if number < self.batches:
                frame.mapInArrow(task, "nothing int").collect()

        took = self._run(self.source(self.rows).writeStream.foreachBatch(batch))
        self._see(APPENDED, table, self.rows)
        return took

    def copied(self) -> float:
        """Milliseconds of a bare COPY of as many rows from two connections, each one transaction,
        of texts that are ready: what the server needs for it.
        """
        table = self._payments()
        texts = _texts(self.rows)
        began = perf_counter()
        with ThreadPoolExecutor(len(texts)) as pool:
            list(pool.map(partial(_copy, self.server.url(), table), texts))
        took = (perf_counter() - began) * 1000
        self._see(APPENDED, table, self.rows, batches=1)
        return took

    def _deliver(self, rows: int, sink: Postgres, **words: Any) -> float:
        name = f"bench-{self._number}"  # a task of the run before may still write its progress
        ledger = f"sqlite:///{self.folder}/ledger-{self._number}.db"
        writer = deliver(self.source(rows), to=sink, name=name, ledger=ledger, **words)
        return self._run(writer)

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

    def _see(self, statement: str, table: str, rows: int, batches: int | None = None) -> None:
        """What was measured has arrived, and the ids tell that it did once; then it is removed, and
        the server has written everything, so that the next begins as this one did.
        """
        [(count, distinct)] = self.server.execute(statement.format(table=table))
        wanted = rows * (batches or self.batches)
        if not isinstance(count, int) or count < wanted or count != distinct:
            raise AssertionError(f"{table}: {count} rows of {distinct} ids")
        self.server.execute(f"drop table {table}")
        self.server.execute("checkpoint")


# -- what people write by hand, and the floor


def row_by_row(cursor: Any, given: list[tuple[int, str]], seen: str, table: str) -> None:
    """Mark a row; add if it was new."""
    mark, add = MARK.format(seen=seen).encode(), ADD.format(table=table).encode()
    for payment, customer in given:
        if cursor.execute(mark, (payment,)).rowcount:
            cursor.execute(add, (customer,))


def pipelined(cursor: Any, given: list[tuple[int, str]], seen: str, table: str) -> None:
    """Both in one statement per row, sent ahead of the answers."""
    cursor.executemany(AT_ONCE.format(seen=seen, table=table).encode(), given)


def as_a_set(cursor: Any, given: list[tuple[int, str]], seen: str, table: str) -> None:
    """One statement for all rows of an Arrow batch."""
    ids, customers = [payment for payment, _ in given], [customer for _, customer in given]
    cursor.execute(AS_A_SET.format(seen=seen, table=table).encode(), (ids, customers))


def _texts(rows: int) -> list[bytes]:
    """The rows of a micro-batch as COPY reads them, in two parts."""
    return [
        b"".join(
            b'"payments",%d,%d,"%d",%d,"payment-%d%s"\n'
            % (part, n // 2, n % CUSTOMERS, n, n, b"x" * 60)
            for n in range(part, rows, 2)
        )
        for part in (0, 1)
    ]


def _copy(url: str, table: str, text: bytes) -> None:
    import psycopg

    statement = f"copy {table} from stdin (format csv)".encode()
    with psycopg.connect(url) as connection, connection.cursor().copy(statement) as copy:
        copy.write(text)


# -- everything


def measure(
    say: BenchmarkProgress, repetitions: int = REPETITIONS, rows: int = ROWS
) -> list[Comparison]:
    """Run everything; give the rows of the table. Without JDBC's driver its rows are left out."""
    say("fetching PostgreSQL's JDBC driver, and starting")
    jar = jdbc_driver()
    if jar is None:
        say(f"{DRIVER} cannot be had (mvn is missing, or the network): JDBC is left out")
    settings = {**overhead.SETTINGS, **({} if jar is None else {"spark.jars": str(jar)})}
    with (
        folder() as place,
        closing(PostgresServer(durable=True)) as server,
        session("postgres", settings) as spark,
    ):
        server.execute(f"alter system set max_wal_size = '{WAL}'")
        server.execute("select pg_reload_conf()")
        bench = PostgresBenchmark(spark, place, say, repetitions, rows, BATCHES, server=server)
        return [*appends(bench, with_jdbc=jar is not None), *bookings(bench)]


def appends(bench: PostgresBenchmark, *, with_jdbc: bool) -> list[Comparison]:
    """COPY in semel's transactions against Spark's own append, as it comes and tuned, against COPY
    by hand, and against the server alone.
    """
    tuned = {"query": "?reWriteBatchedInserts=true", "batchsize": "10000"}
    jdbc: dict[str, Callable[[], float]] = {
        "Spark's JDBC as it comes": bench.jdbc,
        "Spark's JDBC, reWriteBatchedInserts, batchsize 10,000": partial(bench.jdbc, **tuned),
    }
    copies = {
        "COPY by hand in mapInArrow, no promise": bench.copied_by_hand,
        "a bare COPY without Spark (the floor)": bench.copied,
    }
    peers = {**(jdbc if with_jdbc else {}), **copies}
    return _compared(bench, "append", bench.rows, bench.append, peers)


def bookings(bench: PostgresBenchmark) -> list[Comparison]:
    """`balance = balance + x` against a dedup table with ON CONFLICT."""
    peers: dict[str, Callable[[], float]] = {
        "dedup table, then an update, per row": partial(bench.by_hand, row_by_row),
        "both as one statement per row, pipelined": partial(bench.by_hand, pipelined),
        "both as one statement per Arrow batch": partial(bench.by_hand, as_a_set),
    }
    rows = bench.rows // BOOKED_PART
    return _compared(bench, "balance = balance + x", rows, bench.booked, peers)


def _compared(
    bench: PostgresBenchmark,
    what: str,
    rows: int,
    ours: Callable[[], float],
    peers: dict[str, Callable[[], float]],
) -> list[Comparison]:
    """Let semel and all its peers alternate, and compare each peer with it."""
    found = rounds(bench.say, what, bench.repetitions, {"semel": ours, **peers}, "ms")
    rates = {name: [rows * 1000 / each for each in took[1:]] for name, took in found.items()}
    return [
        compared(
            f"{what}; peer: {name}", list(zip(rates["semel"], rates[name], strict=True)), "rows/s"
        )
        for name in peers
    ]


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

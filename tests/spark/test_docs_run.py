"""The Python of the docs runs as printed: one session for all pages, and the servers of the tests.

What is replaced is what every reader replaces: addresses and passwords. `docs_blocks.ON_SPARK`
lists the blocks, and tests/test_docs.py sees that none is missing.
"""

from __future__ import annotations

import inspect
import io
import json
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, redirect_stdout
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

import semel
from semel import Ledger
from semel.ledger.rows import PartitionRow, SpanRow
from semel.ledger.store.opening import open_store
from semel.protocol import PartitionState, SpanState
from semel.sinks import Sink
from semel.verify.servers.kafka import KafkaBroker
from semel.verify.servers.ports import free_port
from semel.verify.servers.redis import RedisServer
from support.command_line import semel as command
from support.docs_blocks import ON_SPARK, PageReader, blocks, forms, typed
from support.spark.driver_scripts import wait_for

COLUMNS = "customer string, payment_id bigint, amount bigint, currency string"
ROWS = [("ann", 1, 5, "EUR"), ("bob", 2, 7, "EUR"), ("ann", 3, 11, "EUR")]


BOOK = """
    create function book(text, bigint, text) returns void language sql
    as 'insert into booked values ($1 || $2 || $3)'
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every page is read in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def absolute() -> dict[str, str]:
    """Spark and its workers were started in another folder: what a page names without one is made
    absolute.
    """
    here = Path.cwd()
    names = {'"checkpoints/': '"{}/checkpoints/', '.json("': '.json("{}/', ' open("': ' open("{}/'}
    return {old: new.format(here) for old, new in names.items()}


@contextmanager
def reading(
    page: str, replaced: dict[str, str] | None = None, **names: Any
) -> Iterator[PageReader]:
    """Read a page; at its end every block that is to be run was run."""
    reader = PageReader(page, {**absolute(), **(replaced or {})}, dict(names))
    yield reader
    numbers = {blocks(page, "python").index(each) for each in reader.ran}
    assert sorted(numbers) == ON_SPARK[page]


def run(reader: PageReader, number: int) -> None:
    """Run a block, and let the query that it started come to the end of its input."""
    reader.run(blocks(reader.page, "python")[number])
    query = reader.names.pop("query", None)
    if query is not None:
        query.processAllAvailable()
        query.stop()


def payments(spark: SparkSession) -> Any:
    """The stream that the pages of sinks call `payments`."""
    Path("payments").mkdir(exist_ok=True)
    frame = spark.createDataFrame(ROWS, COLUMNS)
    place = str(Path("payments").absolute())
    frame.coalesce(1).write.mode("overwrite").json(place)
    return spark.readStream.schema(COLUMNS).json(place)


def deliver(
    spark: SparkSession, sink: Sink, columns: str, *rows: tuple[Any, ...], batch: str = "docs"
) -> None:
    """Deliver rows to a sink that a page only describes; the first two columns are the id."""
    entity, event = (each.split()[0] for each in columns.split(", ")[:2])
    done = semel.deliver_batch(
        spark.createDataFrame(list(rows), columns),
        to=sink,
        name=sink.name,
        batch=batch,
        entity=entity,
        event=event,
        partitions=1,
        ledger="sqlite:///described.db",
    )
    assert done.delivered == {sink.name: len(rows)}
    assert not any(done.parked.values())


# -- start


def write_payments(count: int) -> None:
    """Do what the page's shell does."""
    Path("payments").mkdir()
    lines = [{"customer": f"c{n}", "payment_id": n, "amount": 5} for n in range(1, count + 1)]
    Path("payments/1.json").write_text("".join(json.dumps(each) + "\n" for each in lines))


class _Bank(BaseHTTPRequestHandler):
    """Answers what the amount of a payment says."""

    def do_POST(self) -> None:
        """Answer."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(body["amount"])
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_start(
    spark: SparkSession,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bank = ThreadingHTTPServer(("127.0.0.1", 0), _Bank)
    threading.Thread(target=bank.serve_forever, daemon=True).start()
    one_in_doubt = 'if event.entity == "c42": raise OSError("the answer is lost")'
    replaced = {
        "http://127.0.0.1:8000": f"http://127.0.0.1:{bank.server_port}",
        "time.sleep(0.2)": one_in_doubt,
    }
    with reading("docs/start.md", replaced) as reader:
        run(reader, 0)
        call = reader.names["charge"]
        outcomes = {429: semel.NotDelivered, 422: semel.Rejected, 500: OSError}
        call(semel.Event("c1", 1, 1, "k", {"amount": 200}))
        for code, kind in outcomes.items():
            with pytest.raises(kind):
                call(semel.Event("c1", 1, 1, "k", {"amount": code}))
        write_payments(50)
        run(reader, 1)
        assert len(Path("charged.txt").read_text().splitlines()) == 49
        look_and_resolve(capsys, monkeypatch)
        closed_windows(reader, folder)
        sent = folder / "sent.txt"

        def remind(event: semel.Event) -> None:
            with sent.open("a") as file:
                file.write(f"{event.entity} {event.id}\n")

        reader.names["remind"] = remind
        reader.names["frame"] = spark.createDataFrame(
            [("ann", 1), ("bob", 2)], "customer string, invoice bigint"
        )
        run(reader, 3)
        assert reader.names["done"].delivered == {"remind": 2}
        assert sorted(sent.read_text().splitlines()) == ["ann 1", "bob 2"]
    bank.shutdown()
    bank.server_close()


def look_and_resolve(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command of the page's "Look" and "Resolve" works on the event that it names."""
    shown = [[*typed(each)] for each in blocks("docs/start.md", "")]
    [look] = [each for each in shown if each and "semel status" in each[0]]
    [decide] = [each for each in shown if each and "semel resolve" in each[0]]
    monkeypatch.setenv("SEMEL_LEDGER", "sqlite:///charges.db")
    says = ["charges", "charges/charge/c42/42", "the answer is lost", "in doubt"]
    for line, part in zip(look, says, strict=True):
        code, out, _ = command(capsys, *forms(line)[0])
        assert (code, part in out) == (0, True), f"{line}\n{out}"
    assert len(decide) == 3
    for number, line in enumerate(decide):
        with (
            closing(sqlite3.connect("charges.db")) as ledger,
            closing(sqlite3.connect(f"copy{number}.db")) as copied,
        ):
            ledger.backup(copied)
        monkeypatch.setenv("SEMEL_LEDGER", f"sqlite:///copy{number}.db")
        code, out, err = command(capsys, *forms(line)[0])
        assert (code, "c42/42" in out) == (0, True), f"{line}\n{out}{err}"


def closed_windows(reader: PageReader, folder: Path) -> None:
    """A window is announced once, also when the checkpoint is lost and all is read again."""
    Path("clicks").mkdir()
    times = ["12:01", "12:02", "12:31", "12:45"]
    clicks = [{"page": page, "at": f"2026-01-01 {at}:00"} for at in times for page in "ab"]
    expected = {"a 12:00 2", "a 12:30 1", "b 12:00 2", "b 12:30 1"}
    for number in (1, 2):
        lines = "".join(json.dumps(each) + "\n" for each in clicks)
        Path(f"clicks/{number}.json").write_text(lines)
        run(reader, 2)
        announced = Path("announced.txt").read_text().splitlines()
        assert (set(announced), len(announced)) == (expected, len(expected))
        shutil.rmtree("checkpoints/windows")
        clicks = [{"page": page, "at": "2026-01-01 13:05:00"} for page in "ab"]
        expected |= {"a 12:40 1", "b 12:40 1"}


def test_a_stop_leaves_behind_what_start_says(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    program = blocks("docs/start.md", "python")[1]
    reader = PageReader("docs/start.md", {**absolute(), "query.awaitTermination()": ""})
    write_payments(20)
    reader.run(program)
    booked = Path("charged.txt")
    wait_for(lambda: booked.exists() and len(booked.read_text().splitlines()) > 2)
    reader.names["query"].stop()
    url = "sqlite:///charges.db"

    def state() -> object:
        _, out, _ = command(capsys, "status", "--json", "--ledger", url)
        [shown] = json.loads(out)
        return shown["state"]

    wait_for(lambda: state() == "ended")  # the end is recorded within a second of the stop
    with closing(open_store(url)) as store:
        streams = [PartitionRow.load(text) for _, text in store.scan("streams", "")]
        spans = [SpanRow.load(text) for _, text in store.scan("events", "")]
        assert list(store.scan("parked", "")) == []
    pending = [each for each in streams if each.state is PartitionState.PENDING]
    open_ = [each for each in spans if each.state is SpanState.INTENDED]
    assert 1 <= len(pending) <= 2
    assert len(open_) <= len(pending), "one window for each partition that was being delivered"
    reader.run(program)
    reader.names["query"].awaitTermination()
    with Ledger(url) as ledger:
        held = [f"{row.scope} {row.event}" for _, row in ledger.parked("charges")]
    charged = booked.read_text().splitlines()
    assert len(charged) == len(set(charged))
    assert {*charged, *held} == {f"c{n} {n}" for n in range(1, 21)}
    assert len(held) == len(open_)


# -- testing


def test_testing(spark: SparkSession, tmp_path: Path) -> None:
    with reading("docs/testing.md") as reader:
        for number in ON_SPARK[reader.page]:
            run(reader, number)
        fixtures = {"spark": spark}
        tests = {name: each for name, each in reader.names.items() if name.startswith("test_")}
        assert len(tests) == 4
        for name, test in tests.items():
            own = tmp_path / name
            own.mkdir()
            wanted = inspect.signature(test).parameters
            test(**{each: {**fixtures, "tmp_path": own}[each] for each in wanted})


# -- the sinks


def test_files(spark: SparkSession, postgres_url: str, tmp_path: Path) -> None:
    Path("orders").mkdir()
    rows = [{"customer": "ann", "order_id": n, "amount": 1.5} for n in (1, 2)]
    Path("orders/1.json").write_text("".join(json.dumps(each) + "\n" for each in rows))
    with psycopg.connect(postgres_url) as connection:
        connection.execute(
            "create table orders (customer text, order_id bigint, amount numeric(12, 2))"
        )
    replaced = {
        "postgresql://app:secret@db/dw": postgres_url,
        '"lake/orders/lake"': f'"{tmp_path}/lake/orders/lake"',
    }
    with reading("docs/sinks/files.md", replaced) as reader:
        run(reader, 0)
        said = io.StringIO()
        with redirect_stdout(said):
            run(reader, 1)
        assert said.getvalue().count("ann") == 3 * 2
        columns = "customer string, order_id bigint, amount decimal(12, 2)"
        bob = ("bob", 3, Decimal("2.50"))
        run(reader, 3)
        with redirect_stdout(said):
            deliver(spark, reader.names["lake"], columns, bob, batch="registered")
        assert "register lake@registered/lake/" in said.getvalue()
        run(reader, 4)
        deliver(spark, reader.names["lake"], columns, bob, batch="loaded")
        run(reader, 5)
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("select customer from orders").fetchall() == [("bob",)]


def test_http(spark: SparkSession) -> None:
    port = free_port()
    replaced = {
        "8000": str(port),
        "${BANK_TOKEN}": "${PATH}",  # one that workers have
        "https://bank.example": f"http://127.0.0.1:{port}",
        "postgresql://...": "sqlite:///http.db",
    }
    with reading("docs/sinks/http.md", replaced, payments=payments(spark)) as reader:
        bank = PageReader(reader.page, replaced)
        program = bank.prepared(blocks(reader.page, "python")[1])
        threading.Thread(target=program, daemon=True).start()
        run(reader, 0)
        reader.ran += bank.ran
        assert len(bank.names["charged"]) == len(ROWS)
        assert b"payment 3" in b"".join(bank.names["charged"].values())


def test_kafka(spark: SparkSession, kafka: KafkaBroker) -> None:
    kafka.create_topic("booked")
    replaced = {
        "broker-1:9092,broker-2:9092": kafka.servers,
        "postgresql://ledger/semel": "sqlite:///kafka.db",
    }
    with reading("docs/sinks/kafka.md", replaced, payments=payments(spark)) as reader:
        run(reader, 0)
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": kafka.servers, "group.id": "docs"})
    at = TopicPartition("booked", 0, 0)
    consumer.assign([at])
    records = consumer.consume(3, timeout=60)
    consumer.close()
    ids = [json.loads(each.value() or b"")["payment_id"] for each in records]
    assert sorted(ids) == [1, 2, 3]


def test_postgres(spark: SparkSession, postgres_url: str) -> None:
    statements = [
        "create table balances (customer text primary key, balance numeric)",
        "create table charged (customer text, payment_id bigint, amount bigint)",
        "create schema sales",
        "create table sales.payments (id bigint, amount bigint)",
        "create table booked (line text)",
        BOOK,
    ]
    with psycopg.connect(postgres_url) as connection:
        for each in statements:
            connection.execute(each)
    replaced = {
        "postgresql://app:secret@db.example/bank": postgres_url,
        "postgresql://app:secret@db.example/ledger": postgres_url,
        "postgresql://postgres:secret@localhost/postgres": postgres_url,
    }
    three = "customer string, payment_id bigint, amount bigint"
    given: dict[str, Any] = {"payments": payments(spark), "URL": postgres_url}
    with reading("docs/sinks/postgres.md", replaced, **given) as reader:
        run(reader, 0)
        run(reader, 1)
        deliver(spark, reader.names["charge"], three, ("ann", 1, 5), ("bob", 2, 6))
        run(reader, 2)
        run(reader, 3)
        for sink in reader.values:
            deliver(spark, sink, three, ("ann", 7, 5))
    counts = {"balances": 2, "charged": 2, "sales.payments": 1, "booked": 1}
    with psycopg.connect(postgres_url) as connection:
        for table, count in counts.items():
            assert connection.execute(f"select count(*) from {table}").fetchone() == (count,)


def test_redis(spark: SparkSession, redis: RedisServer) -> None:
    url = redis.url()
    replaced = {
        "rediss://app:secret@cache.example:6379/0": url,
        "redis://localhost:6379/0": url,
        "postgresql://app:secret@db.example/ledger": "sqlite:///redis.db",
    }
    columns = {
        "orders": ("shop string, id bigint, payload string", ("s", 1, "{}")),
        "seen": ("device string, id bigint, temperature double", ("d", 1, 21.5)),
        "transfers": (
            "payer string, id bigint, payee string, amount bigint",
            ("ann", 1, "bob", 5),
        ),
        "balances": ("customer string, payment_id bigint, amount bigint", ("ann", 1, 5)),
    }
    with reading("docs/sinks/redis.md", replaced, payments=payments(spark), URL=url) as reader:
        for number in ON_SPARK[reader.page]:
            run(reader, number)
        assert redis.execute("HGET", "balance:ann", "EUR") == b"16"
        deliver(spark, reader.names["charge"], columns["balances"][0], ("ann", 1, 5))
        redis.execute("SET", "account:ann", 10)
        for sink in reader.values:
            names, row = columns[sink.name]
            deliver(spark, sink, names, row)
    kept = {"paid": b"5", "account:bob": b"5", "last:d": b"21.5", "{balances}:ann": b"5"}
    assert {key: redis.execute("GET", key) for key in kept} == kept
    assert redis.execute("XLEN", "orders:s") == 1

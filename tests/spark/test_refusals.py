"""What would make the promise false is refused before an event moves, with what to do."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import date
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.readwriter import DataStreamWriter

from semel.errors import ConfigurationError
from semel.protocol import Capability
from semel.sinks import Files, Http
from semel.spark import checkpoints
from semel.spark.deliver import deliver, deliver_batch
from support.spark.charge_sinks import make_sink
from support.spark.driver_scripts import names
from support.spark.query_job import source
from support.spark.sessions import Desk, finish, stopped_by

Writing = Callable[[Any], Any]


@pytest.fixture
def payments(desk: Desk) -> DataFrame:
    """A streaming frame of payments that has something to deliver."""
    desk.payments(files=2, rows=10)
    return source(desk.settings(max_files=10), desk.spark)


def writer(desk: Desk, frame: DataFrame, **words: Any) -> DataStreamWriter:
    """The writer as a user makes it, with a checkpoint."""
    usual: dict[str, Any] = {
        "to": make_sink("opaque", desk.house.url),
        "name": "charges",
        "ledger": f"sqlite:///{desk.folder / 'ledger.db'}",
    }
    if not {"entity", "event", "identity"} & set(words):
        usual |= {"entity": "customer", "event": "payment_id"}
    made = deliver(frame, **{**usual, **words})
    made = made.option("checkpointLocation", str(desk.folder / "checkpoint"))
    return made.trigger(availableNow=True)


def nothing_moved(desk: Desk) -> bool:
    return desk.charges() == [] and not (desk.folder / "checkpoint").exists()


# -- the words of semel.deliver


WORDS: dict[str, tuple[dict[str, Any], str]] = {
    "a missing entity column": (
        {"entity": "client", "event": "payment_id"},
        r"'client'.*customer, payment_id, amount",
    ),
    "a missing event column": (
        {"entity": "customer", "event": "id"},
        r"'id'.*customer, payment_id, amount",
    ),
    "no identity at all": ({"identity": None}, r"no parameter says which rows are the same event"),
    "an event without an entity": ({"event": "payment_id"}, r'needs both entity="customer"'),
    "an entity without an event": ({"entity": "customer"}, r"no parameter says which rows are"),
    "position without its columns": ({"identity": "position"}, r"no column 'offset'"),
    "a counter without an entity": ({"identity": "counter"}, r'pass entity="customer"'),
    "a counter with an event": (
        {"identity": "counter", "entity": "customer", "event": "payment_id"},
        r"remove event=",
    ),
    "an unknown identity": (
        {"identity": "uuid"},
        r"unknown identity 'uuid'; use 'position', 'given' or 'counter': entity=",
    ),
    "no identity but a number": ({"identity": 7}, r"unknown identity 7; use"),
    "text ids in order": (
        {"entity": "payment_id", "event": "customer"},
        r'event column \'customer\' is not a number.*Pass order_by="created_at".*order=False',
    ),
    "no partition at all": (
        {"entity": "customer", "event": "payment_id", "partitions": 0},
        r"partitions must be a whole number of at least 1, got 0",
    ),
    "no name": (
        {"entity": "customer", "event": "payment_id", "name": ""},
        r'needs a name: pass name="charges"',
    ),
    "no sink": (
        {"entity": "customer", "event": "payment_id", "to": []},
        r"to= is empty; pass a sink, or several",
    ),
    "a sink that is none": (
        {"entity": "customer", "event": "payment_id", "to": "kafka"},
        r"to must be a sink or a list of sinks, got 'kafka'. Pass the sink itself, without quotes",
    ),
    "a list of names": (
        {"entity": "customer", "event": "payment_id", "to": [print, "kafka"]},
        r"to\[1\] must be a sink or a list of sinks, got 'kafka'",
    ),
    "a template of a column that is not there": (
        {
            "entity": "customer",
            "event": "payment_id",
            "to": Http(name="pay", url="http://127.0.0.1:1/{payment}"),
        },
        r"sink 'pay', url names the column 'payment'.*did you mean 'payment_id'",
    ),
    "a sink that cannot be pickled": (
        {"entity": "customer", "event": "payment_id", "to": partial(print, threading.Lock())},
        r"sink 'partial' cannot be sent to the executors: argument 0 .*is a _thread.lock",
    ),
}


@pytest.mark.parametrize("case", WORDS)
def test_words_that_cannot_keep_the_promise_are_refused(
    desk: Desk, payments: DataFrame, case: str
) -> None:
    words, told = WORDS[case]
    with pytest.raises(ConfigurationError, match=f"(?s){told}") as refused:
        writer(desk, payments, **words)
    if words.get("name", "charges"):
        assert "pipeline 'charges'" in str(refused.value)
    assert nothing_moved(desk)


@pytest.mark.parametrize("verb", [deliver, deliver_batch])
def test_what_is_no_frame_and_a_name_that_is_no_text_are_refused(
    verb: Callable[..., object],
) -> None:
    words: dict[str, Any] = {"to": print, "entity": "customer", "event": "payment_id"}
    if verb is deliver_batch:
        words["batch"] = "2026-11-15"
    with pytest.raises(
        ConfigurationError, match=r"'charges'.*df must be a Spark DataFrame, got list"
    ):
        verb([1], name="charges", **words)
    with pytest.raises(ConfigurationError, match=r"name must be a non-empty string, got 7"):
        verb([1], name=7, **words)


@pytest.mark.parametrize("destination", [3, None, Files, "redis://:secret@h", {"a": print}, b"x"])
@pytest.mark.parametrize("verb", [deliver, deliver_batch])
def test_one_thing_that_is_no_sink_is_refused(
    verb: Callable[..., object], destination: object
) -> None:
    frame: Any = SimpleNamespace(isStreaming=verb is deliver)
    words: Any = {"to": destination, "name": "charges"}
    if verb is deliver_batch:
        words["batch"] = "2026-11-15"
    with pytest.raises(ConfigurationError, match=r"to must be a sink or a list of sinks") as error:
        verb(frame, **words)
    assert "secret" not in str(error.value)


def test_two_sinks_of_one_name_are_refused(desk: Desk, payments: DataFrame) -> None:
    sinks = [make_sink("opaque", desk.house.url), make_sink("repeatable", desk.house.url)]
    with pytest.raises(
        ConfigurationError, match=r"two sinks have the name 'charge'.*name=\"\.\.\.\""
    ):
        writer(desk, payments, to=sinks)
    assert nothing_moved(desk)


def test_a_streaming_frame_is_no_batch_and_the_other_way_round(
    desk: Desk, payments: DataFrame
) -> None:
    words: Any = {"to": make_sink("opaque", desk.house.url), "name": "charges"}
    words |= {"entity": "customer", "event": "payment_id", "ledger": "sqlite:////dev/null/no"}
    static = desk.spark.read.json(str(desk.input))
    with pytest.raises(ConfigurationError, match=r"not streaming.*semel.deliver_batch"):
        deliver(static, **words)
    with pytest.raises(ConfigurationError, match=r"is streaming: call semel.deliver\(df"):
        deliver_batch(payments, batch="2026-11-15", **words)
    with pytest.raises(ConfigurationError, match=r'batch="2026-11-14"'):
        deliver_batch(static, batch="", **words)
    with pytest.raises(
        ConfigurationError, match=r"a non-empty string.*datetime.date\(2026, 11, 14\)"
    ):
        deliver_batch(static, batch=date(2026, 11, 14), **words)  # type: ignore[arg-type]
    assert nothing_moved(desk)


# -- what is said to the writer


ELSEWHERE: dict[str, Writing] = {
    ".format('console')": lambda made: made.format("console"),
    ".foreach(...)": lambda made: made.foreach(print),
    ".foreachBatch(...)": lambda made: made.foreachBatch(print),
    ".toTable('t')": lambda made: made.toTable("t"),
    ".partitionBy('customer',)": lambda made: made.partitionBy("customer"),
    ".clusterBy('customer',)": lambda made: made.clusterBy("customer"),
    "start(path='/tmp/x')": lambda made: made.start("/tmp/x"),
    "start(format='memory')": lambda made: made.start(format="memory"),
    "start(partitionBy='customer')": lambda made: made.start(partitionBy="customer"),
}


@pytest.mark.parametrize("what", ELSEWHERE)
def test_writing_somewhere_else_is_refused(desk: Desk, payments: DataFrame, what: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        ELSEWHERE[what](writer(desk, payments))
    assert what in str(refused.value)
    assert "would make Spark write somewhere else, and semel deliver nothing" in str(refused.value)
    assert nothing_moved(desk)


STARTS: dict[str, tuple[Writing, str]] = {
    "continuous": (
        lambda made: made.trigger(continuous="1 second").start(),
        r"trigger\(continuous=\.\.\.\) runs without micro-batches.*processingTime or availableNow",
    ),
    "real time": (
        lambda made: made.trigger(realTime="5 minutes").start(),
        r"trigger\(realTime=\.\.\.\) runs without micro-batches.*processingTime or availableNow",
    ),
    "asynchronous": (
        lambda made: made.option("asyncProgressTrackingEnabled", True).start(),
        r"asynchronous progress tracking.*Remove asyncProgressTrackingEnabled",
    ),
    "asynchronous in start": (
        lambda made: made.start(asyncProgressTrackingEnabled="TRUE"),
        r"asynchronous progress tracking",
    ),
    "update": (
        lambda made: made.outputMode("update").start(),
        r"in update mode a row comes again.*append mode, identity=\"counter\", or an id that inc",
    ),
    "complete in start": (
        lambda made: made.start(outputMode="complete"),
        r"in complete mode a row comes again",
    ),
}


@pytest.mark.parametrize("case", STARTS)
def test_a_start_that_cannot_keep_the_promise_is_refused(
    desk: Desk, payments: DataFrame, case: str
) -> None:
    say, told = STARTS[case]
    with pytest.raises(ConfigurationError, match=f"(?s)pipeline 'charges'.*{told}"):
        say(writer(desk, payments))
    assert nothing_moved(desk)


def test_a_missing_checkpoint_location_is_refused(desk: Desk, payments: DataFrame) -> None:
    made = deliver(
        payments,
        to=make_sink("opaque", desk.house.url),
        name="charges",
        entity="customer",
        event="payment_id",
    )
    with pytest.raises(ConfigurationError, match=r'\.option\("checkpointLocation", "checkpoints/'):
        made.start()
    assert nothing_moved(desk)
    desk.spark.conf.set("spark.sql.streaming.checkpointLocation", str(desk.folder / "checkpoints"))
    try:
        finish(made.queryName("paying").trigger(availableNow=True))
    finally:
        desk.spark.conf.unset("spark.sql.streaming.checkpointLocation")
    assert (desk.folder / "checkpoints" / "paying.semel.db").is_file()
    assert sorted(names(desk.charges())) == sorted(desk.expected)


# -- the session and its surroundings


@pytest.mark.parametrize("capability", [each.value for each in Capability])
def test_speculation_is_refused_where_the_destination_cannot_refuse_a_second(
    desk: Desk, payments: DataFrame, capability: str
) -> None:
    session = session_with(desk, "spark.speculation", "true")
    frame = source(desk.settings(max_files=10), session)
    made = writer(desk, frame, to=make_sink(capability, desk.house.url))
    if capability in ("opaque", "probing"):
        with pytest.raises(ConfigurationError, match=r"Set spark\.speculation=false"):
            made.start()
        assert nothing_moved(desk)
    else:
        finish(made)
        assert sorted(names(desk.charges())) == sorted(desk.expected)


def session_with(desk: Desk, name: str, value: str) -> SparkSession:
    """A session beside the module's that says it was configured so."""
    session = desk.spark.newSession()
    session.conf.set("spark.sql.legacy.setCommandRejectsSparkCoreConfs", "false")
    session.conf.set(name, value)
    return session


MASTERS = {
    "local": True,
    "local[*]": True,
    "local[4,4]": True,
    "local-cluster[2,1,1024]": True,
    "spark://127.0.0.1:7077": True,
    "spark://localhost:7077,localhost:7078": True,
    "spark://host:7077": False,
    "spark://host:7077,127.0.0.1:7077": False,
    "spark://127.0.0.1:7077,host:7077": False,
    "yarn": False,
    "k8s://https://10.0.0.1:6443": False,
}


@pytest.mark.parametrize("master", MASTERS)
def test_a_sqlite_ledger_is_refused_where_executors_are_on_other_machines(
    desk: Desk, master: str
) -> None:
    session = session_with(desk, "spark.master", master)
    checkpoints.refuse_unreachable("postgresql://user@host/database", session)
    if MASTERS[master]:
        checkpoints.refuse_unreachable("sqlite:///ledger.db", session)
        return
    with pytest.raises(ConfigurationError, match=r"SQLite file, and the master is") as refused:
        checkpoints.refuse_unreachable("sqlite:///ledger.db", session)
    assert 'ledger="postgresql://user@host/database", or set $SEMEL_LEDGER' in str(refused.value)


OPTIMIZED = """
import sys
from semel.errors import ConfigurationError
from semel.spark.checks import refuse_optimized
try:
    refuse_optimized()
except ConfigurationError as error:
    sys.exit(str(error))
"""


@pytest.mark.parametrize("how", ["-O", "-OO", "PYTHONOPTIMIZE"])
def test_a_driver_without_assertions_is_refused(how: str) -> None:
    flags = [how] if how.startswith("-") else []
    environment = {**os.environ, **({} if flags else {how: "1"})}
    told = subprocess.run(
        [sys.executable, *flags, "-c", OPTIMIZED],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert told.returncode == 1
    assert "Python runs with -O (PYTHONOPTIMIZE)" in told.stderr
    assert "start the driver and the executors without it" in told.stderr


def test_workers_without_assertions_are_refused(
    desk: Desk, payments: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(desk.spark.sparkContext.environment, "PYTHONOPTIMIZE", "1")
    told = stopped_by(writer(desk, payments))
    assert told.startswith(
        "ConfigurationError: pipeline 'charges', minibatch 1.0: Python runs with"
    )
    assert desk.charges() == []


# -- what the rows hold


@pytest.mark.parametrize("column", ["customer", "payment_id"])
def test_an_event_without_a_name_is_refused_and_nothing_of_its_partition_moves(
    desk: Desk, payments: DataFrame, column: str
) -> None:
    nameless = sql.when(sql.col("amount") != 7, sql.col(column))
    told = stopped_by(writer(desk, payments.withColumn(column, nameless), partitions=1))
    assert told.startswith("ConfigurationError: pipeline 'charges', minibatch 1.0: ")
    assert f" column {column!r} is null" in told
    assert f"filter such rows out, or coalesce({column}, ...)" in told
    assert desk.charges() == []


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("customer", {"entity": "customer", "event": "payment_id"}),
        ("id", {"entity": "customer", "event": "id", "order_by": "payment_id"}),
    ],
)
def test_a_name_that_is_not_utf8_is_refused_with_its_place_and_nothing_moves(
    desk: Desk, payments: DataFrame, column: str, words: dict[str, Any]
) -> None:
    spoiled = sql.expr("cast(unhex(if(payment_id = 3, '636166e9', '6162')) as string)")
    told = stopped_by(writer(desk, payments.withColumn(column, spoiled), partitions=1, **words))
    assert told.startswith("ConfigurationError: pipeline 'charges', minibatch 1.0: ")
    assert f" column {column!r} is a text that is not UTF-8, b'caf\\xe9' (the event at" in told
    assert desk.charges() == []


def test_one_id_with_two_contents_is_refused(desk: Desk, payments: DataFrame) -> None:
    told = stopped_by(writer(desk, payments.withColumn("payment_id", sql.lit(1)), partitions=1))
    assert told.startswith("Diverged: pipeline 'charges', minibatch 1.0: event 1 of entity ")
    assert "appears twice with different content (amount differ); an id must name one event" in told
    assert desk.charges() == []


# -- a name that was used before


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "another identity": (
        {"entity": "customer", "event": ["payment_id", "amount"]},
        r"identity",
    ),
    "increasing ids": (
        {"entity": "customer", "event": "payment_id", "increasing": True},
        r"identity",
    ),
    "counted ids": ({"entity": "customer", "identity": "counter"}, r"identity"),
    "another capability": ({"to": "transactional"}, r"sink"),
    "another number of partitions": ({"partitions": 5}, r"(?s)2.*5|5.*2"),
}


def test_a_name_that_was_used_otherwise_is_refused(desk: Desk, payments: DataFrame) -> None:
    finish(writer(desk, payments, partitions=2))
    before = desk.charges()
    assert sorted(names(before)) == sorted(desk.expected)
    desk.payments(files=1, rows=10)
    for words, told in CHANGES.values():
        changed = dict(words)
        if isinstance(changed.get("to"), str):
            changed["to"] = make_sink(changed["to"], desk.house.url)
        with pytest.raises(ConfigurationError, match=told) as refused:
            writer(desk, payments, **changed).start()
        assert "pipeline 'charges'" in str(refused.value)
    assert desk.charges() == before
    finish(writer(desk, payments))
    assert sorted(names(desk.charges())) == sorted(desk.expected)

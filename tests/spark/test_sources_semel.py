"""The sources `semel.kafka` and `semel.inbox` on Spark: exact ranges, kills, lost checkpoints."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from semel import Ledger
from semel.errors import ConfigurationError
from semel.spark import checkpoints, deliver
from semel.spark.frames import kafka_topics, plan
from semel.spark.sources.positions import Offset
from semel.streams import Inbox, NewEvent
from semel.verify.demo.standalone import SMALL_JVM, ConnectServer, spark_environment
from semel.verify.process_group import ProcessGroup
from semel.verify.servers.kafka import KafkaBroker
from support.sinks.kafka_inputs import add_partitions, produce
from support.spark.driver_scripts import Bed, assert_once, assert_ordered, repeated, wait_for
from support.spark.settings import Settings

pytestmark = pytest.mark.needs("markers")

POSITION = {"identity": "position"}
BY_ENTITY: dict[str, Any] = {"entity": "entity", "event": "event", "increasing": True}


class Stops(Exception):
    """A micro-batch fails."""


class Batches:
    """A `foreachBatch` that keeps the rows of each micro-batch, and fails at the given one."""

    def __init__(self, *, fails_at: int | None = None) -> None:
        self.fails_at = fails_at
        self.rows: dict[int, list[Any]] = {}

    def __call__(self, frame: DataFrame, number: int) -> None:
        found = frame.select("topic", "partition", "offset", "marker").collect()
        self.rows[number] = sorted(map(tuple, found))
        if number == self.fails_at:
            raise Stops


def kafka_options(kafka: KafkaBroker, topic: str, **more: Any) -> dict[str, str]:
    given = {"kafka.bootstrap.servers": kafka.servers, "subscribe": topic}
    return {**given, "startingOffsets": "earliest", **{k: str(v) for k, v in more.items()}}


def run(spark: SparkSession, batches: Batches, folder: Path, options: dict[str, str]) -> None:
    frame = spark.readStream.format("semel.kafka").options(**options).load()
    writer = frame.writeStream.foreachBatch(batches).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


@pytest.mark.rows("A1", "A3", "A11", "O1", "O3", "O7")
def test_a_replay_reads_the_recorded_range_whatever_the_limits_are_now(
    spark: SparkSession, kafka: KafkaBroker, tmp_path: Path
) -> None:
    topic = kafka.create_topic(partitions=2)
    produce(kafka, topic, [str(n) for n in range(100)])
    first = Batches(fails_at=1)
    with pytest.raises(StreamingQueryException):
        run(spark, first, tmp_path, kafka_options(kafka, topic, maxOffsetsPerTrigger=30))
    assert [len(rows) for rows in first.rows.values()] == [30, 30]
    produce(kafka, topic, [str(n) for n in range(100, 120)])
    again = Batches()
    options = kafka_options(kafka, topic, maxOffsetsPerTrigger=500, startingOffsets="latest")
    run(spark, again, tmp_path, {**options, "kafka.fetch.wait.max.ms": "10"})
    assert again.rows[1] == first.rows[1]
    assert [len(rows) for rows in again.rows.values()] == [30, 60]
    every = [*first.rows[0], *again.rows[1], *again.rows[2]]
    assert len({row[:3] for row in every}) == 120
    # Each micro-batch ends at a marker, and the checkpoint has it with all positions.
    for number, rows in {0: first.rows[0], **again.rows}.items():
        end = offset_of(tmp_path, number)
        assert {row[3] for row in rows} <= {end.marker, *(each.number for each in end.borders)}
        assert end.into is None
        assert end.positions.keys() == {(topic, 0), (topic, 1)}
    assert checkpoints.inputs(str(tmp_path / "checkpoint"), 1, lambda: None) != ()
    starts = checkpoints.starts(spark, str(tmp_path / "checkpoint"), 2)
    assert starts is not None
    assert sum(starts.values()) == 60
    # Its columns are positions, and Kafka reports the id of the topic.
    frame = spark.readStream.format("semel.kafka").options(**kafka_options(kafka, topic)).load()
    assert plan.keeps_positions(frame.where("offset > 0"), ("topic", "partition", "offset"))
    told = kafka_topics.ask(frame, kafka_topics.find(frame), [topic])
    assert (set(told.ids), told.why) == ({topic}, "")
    # A batch reads the same rows with the same markers.
    batch = spark.read.format("semel.kafka").options(**kafka_options(kafka, topic)).load()
    assert batch.columns == [
        *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "marker")
    ]
    assert sorted(map(tuple, batch.select("topic", "partition", "offset", "marker").collect())) == (
        sorted(every)
    )
    part = kafka_options(kafka, topic) | {"endingMarker": "2", "startingMarker": "1"}
    part.pop("startingOffsets")
    found = spark.read.format("semel.kafka").options(**part).load()
    assert found.count() == 30
    assert {row.key for row in found.collect()} == {row.value for row in found.collect()}


def offset_of(folder: Path, batch: int) -> Offset:
    lines = (folder / "checkpoint" / "offsets" / str(batch)).read_text().splitlines()
    return Offset.from_json(json.loads(lines[-1]))


@pytest.mark.rows("A1", "A11", "A21", "O7", "O21")
def test_drivers_are_killed_partitions_are_added_and_a_checkpoint_is_lost(
    bed: Bed, kafka: KafkaBroker
) -> None:
    topic = kafka.create_topic(partitions=3)  # the third is silent
    for partition in (0, 1):
        produce(kafka, topic, [f"{partition}-{n}" for n in range(300)], partition)
    settings = bed.settings(
        name=f"markers-{uuid4().hex}",
        source="semel.kafka",
        sink="transactional",
        sink_settings={"chunk_rows": 5},
        delay_s=0.02,
        identity=POSITION,
        trigger=0.0,
        options=kafka_options(kafka, topic, maxOffsetsPerTrigger=150, latency="2s"),
    )
    bed.expected = [(f"{topic}/{p}", n) for p in (0, 1) for n in range(300)]
    driver = bed.start(settings)
    wait_for(partial(has_charges, bed, 170), driver)
    driver.kill()
    driver.wait()
    bed.end_leftovers()
    offsets = [at for at in (Path(settings.checkpoint) / "offsets").iterdir() if at.name.isdigit()]
    begun = sorted(offsets, key=lambda at: int(at.name))
    recorded = begun[-1].read_text()
    other = changed(settings, kafka_options(kafka, topic, maxOffsetsPerTrigger=70, latency="1s"))
    driver = bed.start(other)
    wait_for(partial(has_charges, bed, 330), driver)
    assert begun[-1].read_text() == recorded
    add_partitions(kafka, topic, 5)
    for partition in (3, 4, 0):
        at = 300 if partition == 0 else 0
        produce(kafka, topic, [f"{partition}-{n}" for n in range(20)], partition)
        bed.expected += [(f"{topic}/{partition}", n) for n in range(at, at + 20)]
    wait_for(partial(has_charges, bed, 660), driver, 120)
    driver.kill()
    driver.wait()
    bed.end_leftovers()
    parents_first(bed, topic)
    shutil.rmtree(settings.checkpoint)
    produce(kafka, topic, ["last"], 2)
    bed.expected.append((f"{topic}/2", 0))
    driver = bed.start(other)
    wait_for(partial(has_charges, bed, 661), driver, 120)
    driver.kill()
    driver.wait()
    assert_once(bed.house.charges(), bed.expected)
    assert_ordered(bed.house.charges())
    with Ledger(settings.ledger or "") as ledger:
        [row] = [row for at, row in ledger.rows("open") if settings.name in at]
        assert "positions" in str(row["inputs"])


def changed(settings: Settings, options: dict[str, str]) -> Settings:
    from dataclasses import replace

    return replace(settings, options=options, master="local[1,4]", delay_s=0.0)


def has_charges(bed: Bed, count: int) -> bool:
    return len(bed.house.charges()) >= count


def parents_first(bed: Bed, topic: str) -> None:
    """The first events of the added partitions come after all that the others had by then."""
    names = [(charge.entity, charge.event) for charge in bed.house.charges()]
    children = [at for at, (place, _) in enumerate(names) if place in (f"{topic}/3", f"{topic}/4")]
    old = {(f"{topic}/{p}", n) for p in (0, 1) for n in range(300)}
    parents = [at for at, name in enumerate(names) if name in old]
    assert max(parents) < min(children)


@pytest.fixture
def inbox_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'inbox.db'}"


def put(url: str, begin: int, end: int) -> None:
    with Inbox(url, "orders", partitions=None) as inbox:
        inbox.append([NewEvent(entity=f"c{n % 5}", value=b"%d" % n) for n in range(begin, end)])


@pytest.mark.rows("S3", "A21", "O7", "O21")
def test_two_processes_write_one_inbox_that_is_repartitioned_and_a_lost_checkpoint_repeats_nothing(
    spark: SparkSession, postgres_url: str, tmp_path: Path
) -> None:
    options = {"ledger": postgres_url, "stream": "orders", "reader": "orders", "latency": "1s"}
    with Inbox(postgres_url, "orders", partitions=2) as inbox, ProcessGroup("writers") as group:
        inbox.create()
        environment = spark_environment(group.folder, [])
        command = [sys.executable, "-m", "support.spark.inbox_writer", postgres_url, "orders"]
        path = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "src")]
        environment["PYTHONPATH"] = ":".join([*path, environment.get("PYTHONPATH", "")])

        def two_write(*prefixes: str) -> None:
            started = [
                group.start([*command, each, "150"], environment, tmp_path / f"{each}.log")
                for each in prefixes
            ]
            for writer, each in zip(started, prefixes, strict=True):
                assert writer.wait(60) == 0, (tmp_path / f"{each}.log").read_text()

        two_write("a", "b")
        seen = tmp_path / "seen"
        seen.mkdir()
        frame = spark.readStream.format("semel.inbox").options(**options).load()
        query = delivering(frame, seen, postgres_url, tmp_path).start()
        try:
            wait_until(lambda: len(written(seen)) > 0)
            inbox.repartition(3)
            two_write("c", "d")
            wait_until(lambda: len(written(seen)) >= 600)
            query.processAllAvailable()
        finally:
            query.stop()
        assert_each_once(written(seen), 600)
        assert sum(inbox.readers()[0].completed.values()) >= 300
        shutil.rmtree(tmp_path / "checkpoint")
        inbox.append([NewEvent(entity="c0", value=b"last")])
        more = spark.readStream.format("semel.inbox").options(**options).load()
        writer = delivering(more, seen, postgres_url, tmp_path).trigger(availableNow=True)
        writer.start().awaitTermination()
        assert_each_once(written(seen), 601)
    with Ledger(postgres_url) as ledger:
        assert sum(row.get("events") or 0 for _, row in ledger.rows("markers")) == 601


def wait_until(what: Any, timeout_s: float = 90.0) -> None:
    ends = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < ends, "did not happen in time"
        time.sleep(0.05)


class Noting:
    """Writes down each event it is called with, in a file for each process."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.__name__ = "noting"

    def __call__(self, event: Any) -> None:
        with (Path(self.folder) / "notes").open("a") as notes:
            notes.write(f"{event.entity} {event.id} {bytes(event.value['value']).decode()}\n")


def delivering(frame: DataFrame, seen: Path, ledger: str, folder: Path) -> Any:
    writer = deliver(
        frame, to=Noting(seen), name="orders", ledger=ledger, partitions=2, **BY_ENTITY
    )
    return writer.option("checkpointLocation", str(folder / "checkpoint"))


def written(seen: Path) -> list[tuple[str, int, str]]:
    notes = seen / "notes"
    lines = notes.read_text().splitlines() if notes.exists() else []
    return [(one, int(two), three) for one, two, three in map(str.split, lines)]


def assert_each_once(found: list[tuple[str, int, str]], count: int) -> None:
    assert len(found) == count
    assert len({value for _, _, value in found}) == count
    last: dict[str, int] = {}
    for entity, event, _ in found:
        assert event == last.get(entity, 0) + 1, "lost, repeated or out of order"
        last[entity] = event


@pytest.mark.rows("S14")
def test_both_sources_deliver_through_connect(
    bed: Bed, connect: ConnectServer, kafka: KafkaBroker
) -> None:
    topic = kafka.create_topic(partitions=2)
    for partition in (0, 1):
        produce(kafka, topic, [str(n) for n in range(10)], partition)
    settings = bed.settings(
        name=f"connect-{uuid4().hex}",
        master=connect.url,
        source="semel.kafka",
        identity=POSITION,
        options=kafka_options(kafka, topic, maxOffsetsPerTrigger=7),
    )
    bed.run(settings)
    assert_once(bed.house.charges(), [(f"{topic}/{p}", n) for p in (0, 1) for n in range(10)])
    url = f"sqlite:///{bed.folder / 'inbox.db'}"
    put(url, 0, 20)
    inbox = bed.settings(
        name="connect-inbox",
        master=connect.url,
        source="semel.inbox",
        identity=BY_ENTITY,
        checkpoint=str(bed.folder / "inbox-checkpoint"),
        options={"ledger": url, "stream": "orders"},
        words={"partitions": 2},
    )
    bed.run(inbox)
    charges = bed.house.charges()[20:]
    assert repeated(charges) == {}
    assert sorted((c.entity, c.event) for c in charges) == [
        (f"c{n}", event) for n in range(5) for event in range(1, 5)
    ]


def test_a_source_that_is_not_there_says_so_in_one_sentence(
    spark: SparkSession, kafka: KafkaBroker, inbox_url: str, tmp_path: Path
) -> None:
    put(inbox_url, 0, 5)
    inbox = {"ledger": inbox_url, "stream": "orders"}
    topic = kafka.create_topic(partitions=1)
    for source, options, message in (
        ("semel.inbox", {**inbox, "stream": "other"}, r"has no inbox 'other'"),
        (
            "semel.inbox",
            {**inbox, "startingMarker": "3"},
            r"has no marker 3 yet: the newest one is",
        ),
        ("semel.inbox", {**inbox, "limit": "3"}, r"the option 'limit' is not known; it has"),
        ("semel.kafka", kafka_options(kafka, "none"), r"topic 'none' does not exist"),
        (
            "semel.kafka",
            kafka_options(kafka, topic, startingOffsets=json.dumps({topic: {"7": 1}})),
            rf"startingOffsets names {topic}/7, which is not read",
        ),
        (
            "semel.kafka",
            {**kafka_options(kafka, topic), "kafka.no.such.thing": "1"},
            r"Kafka's client does not know 'no.such.thing'",
        ),
    ):
        with pytest.raises(PySparkException) as raised:
            spark.read.format(source).options(**options).load().count()
        found = re.findall(r"^semel\.errors\.\w+: (.*)$", str(raised.value), re.MULTILINE)
        assert any(re.search(message, each) for each in found), str(raised.value)


@pytest.mark.rows("A1", "O3")
def test_a_batch_of_an_inbox_reads_exactly_a_range_with_its_markers(
    spark: SparkSession, inbox_url: str, tmp_path: Path
) -> None:
    put(inbox_url, 0, 10)
    options = {"ledger": inbox_url, "stream": "orders"}
    seen = Batches()
    stream = spark.readStream.format("semel.inbox").options(**options).load()
    writer = stream.writeStream.foreachBatch(seen).trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    put(inbox_url, 10, 15)

    def read(**more: str) -> list[tuple[int, int | None]]:
        batch = spark.read.format("semel.inbox").options(**options, **more).load()
        assert batch.columns == stream.columns
        rows = batch.selectExpr("cast(string(value) as int) as number", "marker").collect()
        return sorted((row.number, row.marker) for row in rows)

    whole = [(number, 1 if number < 10 else None) for number in range(15)]
    assert read() == read() == whole
    assert read(endingMarker="1") == whole[:10]
    assert read(startingMarker="1") == whole[10:]
    with Inbox(inbox_url, "orders") as inbox:
        ends = inbox.ends()
        begins = {place: max(0, at - 1) for place, at in ends.items()}
        last = [
            int(value)
            for place, at in ends.items()
            for value in inbox.read(place, begins[place], at).column("value").to_pylist()
        ]
    found = read(
        startingOffsets=json.dumps({"orders": begins}), endingOffsets=json.dumps({"orders": ends})
    )
    assert [number for number, _ in found] == sorted(last)


def test_two_clocks_for_one_query_are_refused(spark: SparkSession, inbox_url: str) -> None:
    put(inbox_url, 0, 5)
    source = spark.readStream.format("semel.inbox")
    frame = source.options(ledger=inbox_url, stream="orders", latency="2s").load()
    with pytest.raises(ConfigurationError, match=r"source semel.inbox has the option 'latency'"):
        deliver(frame, to=print, name="two", ledger=inbox_url, application="etl", **BY_ENTITY)


def test_the_example_counts_each_click_once(kafka: KafkaBroker, tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "kafka_markers.py"
    command = [sys.executable, str(example), kafka.servers, str(tmp_path)]
    with ProcessGroup("examples") as group:
        environment = spark_environment(group.folder) | {"JAVA_TOOL_OPTIONS": SMALL_JVM}
        log = tmp_path / "log.txt"
        code = group.start(command, environment, log).wait(300)
    said = log.read_text(errors="replace")
    assert code == 0, said
    assert "30 clicks, markers: {1: 10, 2: 10, 3: 10}" in said
    assert "two partitions added: 60 clicks" in said
    assert "checkpoint lost, read again: {'page-0': 20, 'page-1': 20, 'page-2': 20}" in said

"""What makes an event the same event: chosen by words and by the plan, from any source."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from semel.errors import ConfigurationError
from semel.events import Counter, Given, Identity, Position
from semel.spark.deliver import deliver, deliver_batch
from support.spark.charge_sinks import make_sink
from support.spark.driver_scripts import Name, assert_once, assert_ordered, names, wait_for
from support.spark.positions_table import SCHEMA
from support.spark.query_job import source
from support.spark.sessions import Desk, Query, finish, stopped_by
from support.spark.version_needs import has

GIVEN = {"entity": "customer", "event": "payment_id"}


def writer(desk: Desk, frame: DataFrame, name: str = "charges", **words: Any) -> Any:
    sink = make_sink(words.pop("sink", "opaque"), desk.house.url, words.pop("to", name))
    ledger = f"sqlite:///{desk.folder / 'ledger.db'}"
    made = deliver(frame, to=sink, name=name, ledger=ledger, **words)
    made = made.option("checkpointLocation", str(desk.folder / f"checkpoint-{name}"))
    return made.trigger(availableNow=True)


def positions(desk: Desk) -> DataFrame:
    desk.positions({0: [0, 1, 2, 5, 9], 1: [3, 4]})
    return source(desk.settings(source="positions", max_files=4), desk.spark)


def placed(desk: Desk) -> DataFrame:
    """A source of Kafka's shape whose plan is looked at, and from which nothing is read."""
    if has("positions"):
        return positions(desk)
    folder = desk.folder / "placed"
    folder.mkdir(exist_ok=True)
    return desk.spark.readStream.schema(SCHEMA).json(str(folder))


def payments(desk: Desk, files: int = 2) -> DataFrame:
    desk.payments(files=files, rows=10)
    return source(desk.settings(), desk.spark)


# -- position, found by itself


def _through_a_view(frame: DataFrame) -> DataFrame:
    frame.createOrReplaceTempView("viewed")
    return frame.sparkSession.sql("select * from viewed where offset >= 0")


KEPT: dict[str, Query] = {
    "as it is": lambda frame: frame,
    "project": lambda frame: frame.select("offset", "topic", "partition"),
    "filter": lambda frame: frame.where("offset % 2 = 1").filter(sql.col("value") > 0),
    "another column": lambda frame: frame.withColumn("value", sql.col("value") * 2),
    "a new column": lambda frame: frame.withColumn("offset2", sql.col("offset") + 1),
    "without a column": lambda frame: frame.drop("key"),
    "an alias": lambda frame: frame.alias("a").where("a.offset > 0"),
    "a watermark": lambda frame: frame.withColumn(
        "at", sql.timestamp_seconds("value")
    ).withWatermark("at", "1 minute"),
    "a view": _through_a_view,
    "renamed and back": lambda frame: frame.withColumnRenamed("value", "v").withColumnRenamed(
        "v", "value"
    ),
}


LOST: dict[str, Query] = {
    "repartition": lambda frame: frame.repartition(3),
    "repartition by a column": lambda frame: frame.repartition("key"),
    "coalesce": lambda frame: frame.coalesce(1),
    "explode": lambda frame: frame.withColumn("n", sql.explode(sql.array(sql.lit(1), sql.lit(2)))),
    "union": lambda frame: frame.union(frame),
    "a join": lambda frame: frame.join(
        frame.sparkSession.range(3).withColumnRenamed("id", "value"), "value"
    ),
    "offset computed": lambda frame: frame.withColumn("offset", sql.col("offset") + 0),
    "offset of another": lambda frame: frame.drop("offset").withColumnRenamed("value", "offset"),
    "topic replaced": lambda frame: frame.withColumn("topic", sql.lit("t")),
    "partition swapped": lambda frame: frame.selectExpr(
        "topic", "cast(offset as int) as partition", "offset"
    ),
    "deduplicated": lambda frame: frame.dropDuplicates(["key"]),
    "grouped": lambda frame: frame.groupBy("topic", "partition", "offset").count(),
    "mapped in Python": lambda frame: frame.mapInArrow(lambda batches: batches, frame.schema),
}


@pytest.mark.parametrize("case", KEPT)
def test_position_is_found_where_the_sources_columns_come_through(desk: Desk, case: str) -> None:
    made = writer(desk, KEPT[case](placed(desk)))
    assert made.spec.identity == Position()


@pytest.mark.parametrize("case", LOST)
def test_position_is_not_taken_by_itself_where_rows_were_moved_or_made(
    desk: Desk, case: str
) -> None:
    with pytest.raises(ConfigurationError, match="no parameter says which rows are the same event"):
        writer(desk, LOST[case](placed(desk)))


def _through_sql(frame: DataFrame, text: str) -> DataFrame:
    frame.createOrReplaceTempView("viewed")
    return frame.sparkSession.sql(text)


def _joined(frame: DataFrame, *, broadcast: bool) -> DataFrame:
    table = frame.sparkSession.range(3).withColumnRenamed("id", "value")
    hint = "broadcast" if broadcast else "merge"
    return frame.join(table.groupBy("value").count().hint(hint), "value")


MOVED: dict[str, tuple[Query, str]] = {
    "repartition": (lambda frame: frame.repartition(3), "Exchange RoundRobinPartitioning"),
    "by a column": (lambda frame: frame.where("value > 0").repartition("key"), "Exchange hash"),
    "deduplicated": (lambda frame: frame.dropDuplicates(["key"]), "Exchange hash"),
    "a shuffled join": (lambda frame: _joined(frame, broadcast=False), "Exchange hash"),
    "union": (lambda frame: frame.union(frame), "reads 2 streaming sources"),
    "a view that is repartitioned": (
        lambda frame: _through_sql(frame, "select /*+ repartition(3) */ * from viewed"),
        "Repartition 3, true",
    ),
    "a view twice": (
        lambda frame: _through_sql(frame, "select * from viewed union all select * from viewed"),
        "reads 2 streaming sources",
    ),
}

STAYING: dict[str, Query] = {
    "coalesce": LOST["coalesce"],
    "explode": LOST["explode"],
    "mapped in Python": LOST["mapped in Python"],
    "a broadcast join with what is shuffled": lambda frame: _joined(frame, broadcast=True),
    "a view that is coalesced": lambda frame: _through_sql(
        frame, "select /*+ coalesce(1) */ * from viewed where offset > 1"
    ),
    "names as the plan has them": lambda frame: frame.withColumn("Exchange hash", sql.lit(1)),
}


@pytest.mark.parametrize("case", MOVED)
def test_positions_whose_rows_are_moved_between_tasks_are_refused(desk: Desk, case: str) -> None:
    query, told = MOVED[case]
    with pytest.raises(ConfigurationError, match=f"(?s)pipeline 'charges': .*{told}") as refused:
        writer(desk, query(placed(desk)), identity="position")
    assert "use given identity (entity=, event=)" in str(refused.value)


def test_a_batch_whose_rows_are_moved_between_tasks_is_refused(desk: Desk) -> None:
    rows = desk.spark.createDataFrame([("t", 0, 7)], "topic string, partition int, offset bigint")
    with pytest.raises(ConfigurationError, match="Exchange RoundRobinPartitioning"):
        deliver_batch(rows.repartition(3), to=print, name="charges", batch="b", identity="position")


@pytest.mark.parametrize("case", STAYING)
def test_positions_whose_rows_stay_in_their_tasks_are_taken(desk: Desk, case: str) -> None:
    made = writer(desk, STAYING[case](placed(desk)), identity="position")
    assert made.spec.identity == Position()


WORDS: dict[str, tuple[dict[str, Any], Identity]] = {
    "position": ({"identity": "position"}, Position()),
    "position with an entity": ({"entity": "key"}, Position(entity="key")),
    "position by its column": ({"event": "offset"}, Position()),
    "position with ordinals": (
        {"event": ["offset", "value"], "entity": "key"},
        Position(ordinals=("value",), entity="key"),
    ),
    "position as a value": ({"identity": Position(offset="value")}, Position(offset="value")),
    "given": ({"entity": "key", "event": "value"}, Given("key", ("value",))),
    "given, told": (
        {"identity": "given", "entity": "key", "event": "value", "increasing": True},
        Given("key", ("value",), increasing=True),
    ),
    "counter": (
        {"identity": "counter", "entity": "key", "order_by": "value"},
        Counter("key", ("value",)),
    ),
}


@pytest.mark.parametrize("case", WORDS)
def test_words_choose_the_identity(desk: Desk, case: str) -> None:
    words, identity = WORDS[case]
    assert writer(desk, placed(desk), **words).spec.identity == identity


@pytest.mark.rows("S4", "S5")
def test_each_identity_delivers_once_and_in_order(desk: Desk) -> None:
    frame = positions(desk)
    finish(writer(desk, frame.where("offset != 5"), "found"))
    desk.expected.remove(("t/0", 5))
    assert_once(desk.charges("found"), desk.expected)
    finish(writer(desk, frame, "given", entity="key", event="offset", identity="given"))
    assert_once(desk.charges("given"), [(f"k{at % 3}", at) for at in (0, 1, 2, 5, 9, 3, 4)])
    finish(writer(desk, frame, "counted", entity="key", identity="counter", order_by="value"))
    counted = [("k0", 1), ("k0", 2), ("k0", 3), ("k1", 1), ("k1", 2), ("k2", 1), ("k2", 2)]
    assert_once(desk.charges("counted"), counted)
    for each in ("found", "given", "counted"):
        assert_ordered(desk.charges(each))


def test_rows_of_one_offset_are_told_apart_by_an_ordinal_or_refused(desk: Desk) -> None:
    twice = sql.posexplode(sql.array(sql.lit("a"), sql.lit("b"))).alias("ordinal", "part")
    frame = positions(desk).select("*", twice)
    finish(writer(desk, frame, "exploded", event=["offset", "ordinal"]))
    expected: list[Name] = [
        (name, (int(str(at)), ordinal)) for name, at in desk.expected for ordinal in (0, 1)
    ]
    assert_once(desk.charges("exploded"), expected)
    assert_ordered(desk.charges("exploded"))
    told = stopped_by(writer(desk, frame, "merged", identity="position"))
    assert told.startswith(
        "ConfigurationError: pipeline 'merged', minibatch 1.0: offset 0 of source"
    )
    assert "appears twice. A position" in told
    assert desk.charges("merged") == []


# -- columns of every name and type


NAMES: dict[str, tuple[Query, str, str]] = {
    "a path into a struct": (
        lambda frame: frame.select(sql.struct("customer", "payment_id").alias("who"), "amount"),
        "who.customer",
        "who.payment_id",
    ),
    "a dot in a name": (
        lambda frame: frame.toDF("who.customer", "who.payment", "amount"),
        "who.customer",
        "who.payment",
    ),
    "spaces and umlauts": (
        lambda frame: frame.toDF("der Käufer", "Zahlung Nr. 1", "amount"),
        "der Käufer",
        "Zahlung Nr. 1",
    ),
    "backticks and quotes": (
        lambda frame: frame.toDF("cu`st`omer", "pay\"ment'", "amount"),
        "cu`st`omer",
        "pay\"ment'",
    ),
    "an emoji": (lambda frame: frame.toDF("🧑", "支払い", "amount"), "🧑", "支払い"),
    "text and times beside": (
        lambda frame: frame.select(
            sql.struct("customer", sql.timestamp_seconds("payment_id").alias("at")).alias("a.b"),
            sql.window(sql.timestamp_seconds("payment_id"), "1 second").alias("window"),
            "payment_id",
            "amount",
        ),
        "a.b.customer",
        "payment_id",
    ),
    "the words of the plan": (
        lambda frame: frame.toDF("__semel_bucket_", "select", "amount"),
        "__semel_bucket_",
        "select",
    ),
}


def test_columns_may_have_any_name(desk: Desk) -> None:
    frame = payments(desk, files=1)
    for number, (query, entity, event) in enumerate(NAMES.values()):
        name = f"named-{number}"
        finish(writer(desk, query(frame), name, entity=entity, event=event))
        assert_once(desk.charges(name), desk.expected)
        assert_ordered(desk.charges(name))


def collated(text: Column) -> Column:
    """Text by which A is a, where this Spark has such."""
    return sql.collate(text, "UTF8_LCASE") if has("collations") else text


@pytest.mark.rows("S5")
def test_an_entity_has_its_bucket_by_its_text_whatever_its_type(desk: Desk) -> None:
    frame = payments(desk, files=1)
    number = sql.expr("cast(substr(customer, 2) as int)")
    kinds = {
        "int": number,
        "bigint": number.cast("bigint"),
        "string": number.cast("string"),
        "collated": collated(number.cast("string")),
        "boolean": number < 2,
        "words": (number < 2).cast("string"),
    }
    buckets = {}
    for name, column in kinds.items():
        query = frame.withColumn("customer", column)
        finish(writer(desk, query, name, partitions=5, sink="transactional", **GIVEN))
        charges = desk.charges(name)
        assert len(charges) == len({charge.event for charge in charges}) == 10
        assert_ordered(charges)
        buckets[name] = {(charge.entity, charge.event): charge.partition for charge in charges}
    assert len(set(buckets["int"].values())) > 1
    assert buckets["int"] == buckets["bigint"] == buckets["string"] == buckets["collated"]
    assert buckets["boolean"] == buckets["words"]
    assert {entity for entity, _ in buckets["boolean"]} == {"true", "false"}


@pytest.mark.needs("collations")
def test_collated_entities_are_told_apart_by_their_bytes(desk: Desk) -> None:
    frame = payments(desk, files=1)
    upper = sql.when(sql.col("payment_id") % 2 == 0, "A").otherwise("a")
    query = frame.withColumn("customer", sql.collate(upper, "UTF8_LCASE"))
    finish(writer(desk, query, "collated", **GIVEN))
    assert_once(desk.charges("collated"), [("Aa"[at % 2], at) for at in range(10)])
    text = sql.collate(sql.concat(upper, "payment_id"), "UTF8_LCASE")
    named = frame.select(sql.lit("x").alias("customer"), text.alias("id"), "amount", "payment_id")
    words = {"entity": "customer", "event": "id", "order_by": "payment_id"}
    finish(writer(desk, named, "texts", **words))
    expected = [("x", f"{'Aa'[at % 2]}{at}") for at in range(10)]
    assert names(desk.charges("texts")) == expected


# -- any source


def test_files_of_other_formats_are_delivered_once(desk: Desk) -> None:
    payments(desk)
    static = desk.spark.read.json(str(desk.input))
    for kind in ("parquet", "orc", "csv"):
        where = str(desk.folder / kind)
        static.repartition(4).write.format(kind).save(where)
        frame = desk.spark.readStream.format(kind).schema(static.schema).load(where)
        finish(writer(desk, frame, kind, **GIVEN))
        assert_once(desk.charges(kind), desk.expected)


def test_a_rate_source_is_delivered_once(desk: Desk) -> None:
    rate = desk.spark.readStream.format("rate-micro-batch")
    options = {
        "rowsPerBatch": 8,
        "numPartitions": 3,
        "startTimestamp": 0,
        "advanceMillisPerBatch": 9,
    }
    frame = rate.options(**options).load()
    frame = frame.withColumn("who", sql.col("value") % 3)
    made = writer(desk, frame, "rate", entity="who", event="value", increasing=True)
    query = made.trigger(processingTime="0 seconds").start()
    wait_for(lambda: len(desk.charges("rate")) >= 40 or query.exception())
    query.stop()
    charges = desk.charges("rate")
    assert query.exception() is None
    assert_once(charges, [(str(at % 3), at) for at in range(len(charges))])
    assert_ordered(charges)


def test_lines_from_a_socket_are_delivered_once(desk: Desk) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        lines = desk.spark.readStream.format("socket").options(host="127.0.0.1", port=port).load()
        frame = lines.select(
            sql.from_json("value", "customer string, payment_id bigint").alias("p")
        )
        words = {"entity": "p.customer", "event": "p.payment_id"}
        query = writer(desk, frame, "socket", **words).trigger(processingTime="0 seconds").start()
        try:
            server.settimeout(60)
            line, _ = server.accept()
            with line:
                for at in range(30):
                    line.sendall(json.dumps({"customer": f"c{at % 4}", "payment_id": at}).encode())
                    line.sendall(b"\n")
                wait_for(lambda: len(desk.charges("socket")) >= 30 or query.exception())
        finally:
            query.stop()
    assert query.exception() is None
    assert_once(desk.charges("socket"), [(f"c{at % 4}", at) for at in range(30)])
    assert_ordered(desk.charges("socket"))

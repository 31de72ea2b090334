"""A driver script for stateful queries and batch jobs; arguments: SETTINGS NAME...

The queries that are named run side by side in one session; each is a pipeline and a sink of its
name, with a checkpoint of its own. It ends by itself when everything is delivered.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from semel.spark.deliver import deliver, deliver_batch
from support.spark import faults
from support.spark.charge_sinks import make_sink
from support.spark.query_job import PAYMENTS, say, session
from support.spark.query_job import source as payments
from support.spark.settings import Settings

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
WINDOW_S = 60
STEP_S = 10
BEGAN_S = 3600

Words = dict[str, Any]


@dataclass(frozen=True)
class Continuous:
    """A continuous query: what becomes of payments, and how its events are distinguished."""

    of: Callable[[DataFrame], DataFrame]
    words: Words
    conf: dict[str, str] = field(default_factory=dict)
    mode: str = "append"


def timed(frame: DataFrame) -> DataFrame:
    """Payment n happened 10 n seconds after one o'clock on the first day of all."""
    at = sql.timestamp_seconds(sql.col("payment_id") * STEP_S + BEGAN_S)
    return frame.withColumn("at", at).withWatermark("at", "0 seconds")


def windowed(frame: DataFrame) -> DataFrame:
    window = sql.window("at", f"{WINDOW_S} seconds")
    grouped = timed(frame).groupBy("customer", window)
    return grouped.agg(sql.sum("amount").alias("amount"))


def totals(frame: DataFrame) -> DataFrame:
    """A running total for each customer: a new version with each micro-batch."""
    return frame.groupBy("customer").agg(sql.sum("amount").alias("amount"))


def joined(frame: DataFrame) -> DataFrame:
    """Payments of customers with an even number, at twice the amount, from a static table."""
    spark = frame.sparkSession
    table = spark.createDataFrame([("c0", 2), ("c2", 2)], "customer string, times bigint")
    return frame.join(table, "customer").withColumn("amount", sql.expr("amount * times"))


def deduplicated(frame: DataFrame) -> DataFrame:
    """Each payment comes twice and is kept once."""
    twice = sql.explode(sql.array(sql.lit(1), sql.lit(2))).alias("copy")
    return timed(frame).select("*", twice).dropDuplicates(["payment_id", "at"])


def both(frame: DataFrame) -> DataFrame:
    """Two inputs: the payments, and those of a second folder under other ids."""
    spark = frame.sparkSession
    where = spark.conf.get("spark.semel.second")
    second = spark.readStream.schema(PAYMENTS).option("maxFilesPerTrigger", 2).json(str(where))
    return frame.union(second.withColumn("payment_id", sql.col("payment_id") + 10_000))


def paired(frame: DataFrame) -> DataFrame:
    """A join of two streams: each payment with the same one of the second folder, when both came
    within a minute.
    """
    spark = frame.sparkSession
    where = spark.conf.get("spark.semel.second")
    other = spark.readStream.schema(PAYMENTS).option("maxFilesPerTrigger", 1).json(str(where))
    names = {"customer": "other_customer", "payment_id": "other_id", "amount": "other_amount"}
    second = timed(other).withColumnsRenamed({**names, "at": "other_at"})
    within = sql.expr(
        "payment_id = other_id and other_at between at - interval 1 minute and at + interval 1 "
        "minute"
    )
    found = timed(frame).join(second, within)
    return found.select(
        "customer", "payment_id", (sql.col("amount") + sql.col("other_amount")).alias("amount")
    )


def risen(frame: DataFrame) -> DataFrame:
    """A pattern over single events: a payment that is greater than the one before it."""

    def find(key: Any, frames: Any, state: Any) -> Any:
        import pandas as pd  # type: ignore[import-untyped]

        last = state.get[0] if state.exists else None
        found = []
        rows = pd.concat(list(frames)).sort_values("payment_id")
        for number, amount in zip(rows["payment_id"], rows["amount"], strict=True):
            if last is not None and amount > last:
                found.append((key[0], int(number), int(amount)))
            last = int(amount)
        state.update((last,))
        yield pd.DataFrame(found, columns=["customer", "payment_id", "amount"])

    schema = "customer string, payment_id bigint, amount bigint"
    uneven = sql.expr("payment_id * 7 % 13").alias("amount")
    grouped = frame.select("customer", "payment_id", uneven).groupBy("customer")
    return grouped.applyInPandasWithState(find, schema, "last bigint", "append", "NoTimeout")


def stamped(frame: DataFrame) -> DataFrame:
    """Each payment with the time of its micro-batch, which is the same whenever it is run again."""
    now = sql.unix_micros(sql.current_timestamp())
    return frame.withColumn("amount", now)


GIVEN: Words = {"entity": "customer", "event": "payment_id"}

QUERIES: dict[str, Continuous] = {
    "windowed": Continuous(
        windowed,
        {"entity": "customer", "event": "window.start"},
        {
            "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
            "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        },
    ),
    "counted": Continuous(windowed, {"entity": "customer", "identity": "counter"}),
    "totals": Continuous(totals, {"entity": "customer", "identity": "counter"}, mode="update"),
    "joined": Continuous(joined, GIVEN),
    "deduplicated": Continuous(deduplicated, GIVEN),
    "both": Continuous(both, GIVEN),
}

PATTERNS: dict[str, Continuous] = {
    "paired": Continuous(paired, GIVEN),
    "risen": Continuous(risen, GIVEN),
    "stamped": Continuous(stamped, GIVEN),
}


def main() -> None:
    settings, chosen = Settings.load(Path(sys.argv[1])), sys.argv[2:]
    faults.install(settings.house, settings.steps)
    spark = session(settings)
    if chosen[0] == "batch":
        say(f"delivered {run_batch(spark, settings, chosen[1])}")
        return
    queries = [start(spark, settings, name) for name in chosen]
    for query in queries:
        query.awaitTermination()
    say("finished")


def start(spark: SparkSession, settings: Settings, name: str) -> Any:
    asked = {**QUERIES, **PATTERNS}[name]
    apart = spark.newSession()
    for key, value in {"spark.sql.shuffle.partitions": "2", **asked.conf}.items():
        apart.conf.set(key, value)
    made = deliver(
        asked.of(payments(settings, apart)),
        to=make_sink(str(settings.sink), settings.house, name, **settings.sink_settings),
        name=name,
        ledger=settings.ledger,
        partitions=2,
        **asked.words,
    )
    made = made.option("checkpointLocation", f"{settings.checkpoint}-{name}")
    return made.outputMode(asked.mode).trigger(availableNow=True).start()


def run_batch(spark: SparkSession, settings: Settings, batch: str, **words: Any) -> Any:
    """Run a batch job over the payments that are there."""
    return deliver_batch(
        spark.read.schema(PAYMENTS).json(settings.input).where(settings.where),
        to=make_sink(str(settings.sink), settings.house, **settings.sink_settings),
        name=settings.name,
        batch=batch,
        ledger=settings.ledger,
        partitions=2,
        **{**settings.identity, **words},
    )


if __name__ == "__main__":
    main()

"""A driver script: one start of one query, as `Settings` say; arguments: SETTINGS.

Without a trigger it ends by itself when everything is delivered. It says `batch N` after each
micro-batch and `finished` at the end; what stops it is printed, and it exits with 1.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.readwriter import DataStreamWriter

from semel.sinks import Sink
from semel.spark.deliver import deliver
from semel.verify.demo.charge_server import charge_client
from semel.verify.demo.standalone import SMALL_CONF, SMALL_JVM
from support.spark import class_archive, faults
from support.spark.charge_sinks import make_sink
from support.spark.settings import Settings

PAYMENTS = "customer string, payment_id bigint, amount bigint"


def main() -> None:
    settings = Settings.load(Path(sys.argv[1]))
    faults.install(settings.house, settings.steps)
    spark = session(settings)
    query = writer(settings, source(settings, spark)).start()
    say(f"started {query.id}")
    query.awaitTermination()
    say("finished")


def into(sinks: Callable[[Settings], Sequence[Sink]]) -> None:
    """The main part of a script that has sinks of its own."""
    settings = Settings.load(Path(sys.argv[1]))
    faults.install(settings.house, settings.steps)
    frame = source(settings, session(settings))
    delivering(settings, frame, sinks(settings)).start().awaitTermination()
    say("finished")


def delivering(settings: Settings, frame: DataFrame, sinks: Sequence[Sink]) -> DataStreamWriter:
    """Make the writer of a frame into these sinks, which ends by itself."""
    made = deliver(
        frame,
        to=sinks,
        name=settings.name,
        ledger=settings.ledger,
        **settings.identity,
        **settings.words,
    )
    around(settings, made)
    return made.option("checkpointLocation", settings.checkpoint).trigger(availableNow=True)


def session(settings: Settings) -> SparkSession:
    builder = SparkSession.builder.appName(settings.name)
    if settings.master.startswith("sc://"):
        return builder.remote(settings.master).getOrCreate()
    conf = {
        **SMALL_CONF,
        "spark.driver.extraJavaOptions": f"{SMALL_JVM} {class_archive.option()}",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.metricsEnabled": "false",
        **settings.conf,
    }
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.master(settings.master).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def source(settings: Settings, spark: SparkSession) -> DataFrame:
    if settings.source == "positions":
        from support.spark.positions_source import (
            PositionsSource,  # not every Spark has sources in Python
        )

        spark.dataSource.register(PositionsSource)
        reader = spark.readStream.format("positions").option("table", settings.input)
        return reader.option("limit", settings.max_files).load()
    if settings.source.startswith("semel."):
        from semel.spark import register

        register(spark)
        return spark.readStream.format(settings.source).options(**settings.options).load()
    reader = spark.readStream.schema(PAYMENTS).option("maxFilesPerTrigger", settings.max_files)
    frame = reader.json(settings.input).where(settings.where)
    if settings.counted:
        told = sql.udf(Told(settings.house), "bigint")
        frame = frame.withColumn("amount", told("payment_id", "amount"))
    return frame


class Told:
    """A function in a user's query that leaves a trace each time a row is computed."""

    def __init__(self, house: str) -> None:
        self.house = house

    def __call__(self, payment: int, amount: int) -> int:
        charge_client(self.house).token(f"row/{payment}")
        return amount


def writer(settings: Settings, frame: DataFrame) -> DataStreamWriter:
    if settings.how == "plain":
        made = frame.writeStream.foreachBatch(PlainWriter(settings))
        made = made.option("checkpointLocation", settings.checkpoint)
    else:
        names = [settings.sink] if isinstance(settings.sink, str) else settings.sink
        sinks = [
            make_sink(
                each,
                settings.house,
                "charge" if len(names) == 1 else each,
                delay_s=settings.delay_s,
                **_tuples(settings.sink_settings),
            )
            for each in names
        ]
        made = delivering(settings, frame, sinks)
    if settings.trigger is None:
        return made.trigger(availableNow=True)
    return made.trigger(processingTime=f"{settings.trigger} seconds")


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }


def around(settings: Settings, made: Any) -> None:
    """Ask at the driver's steps around what `foreachBatch` calls."""
    if not set(faults.DRIVER_STEPS) & set(settings.steps):
        return
    kind: Any = type(made).__mro__[2]
    plain = kind.foreachBatch

    def wrapped(self: Any, function: Any) -> Any:
        def batch(frame: DataFrame, number: int) -> None:
            if "batch.before" in settings.steps:
                faults.reach(settings.house, "batch.before")
            function(frame, number)
            if "batch.after" in settings.steps:
                faults.reach(settings.house, "batch.after")

        return plain(self, batch)

    kind.foreachBatch = wrapped


class PlainWriter:
    """`foreachBatch` as people write it: every row is posted, and a replay posts it again."""

    def __init__(self, settings: Settings) -> None:
        self.house, self.delay_s = settings.house, settings.delay_s
        self.steps = tuple(settings.sink_settings.get("steps", ()))
        self.driver_steps = tuple(settings.steps)

    def __call__(self, frame: DataFrame, number: int) -> None:
        self.reach("batch.before", self.driver_steps)
        frame.mapInArrow(self.post, "posted bigint").collect()
        self.reach("batch.after", self.driver_steps)
        say(f"batch {number}")

    def post(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        posted = 0
        for batch in batches:
            for row in batch.to_pylist():
                charge = plain_charge(row)
                self.reach("effect.before", self.steps)
                time.sleep(self.delay_s)
                body = {"sink": "plain", "pid": os.getpid(), "charges": [charge]}
                charge_client(self.house).ask("/charge", body)
                self.reach("effect.after", self.steps)
                posted += 1
        yield pa.RecordBatch.from_pydict({"posted": [posted]})

    def reach(self, step: str, steps: tuple[str, ...]) -> None:
        if step in steps:
            faults.reach(self.house, step)


def plain_charge(row: dict[str, Any]) -> dict[str, Any]:
    if "offset" in row:
        place = f"{row['topic']}/{row['partition']}"
        return {"entity": place, "event": row["offset"], "amount": row["value"]}
    return {"entity": row["customer"], "event": row["payment_id"], "amount": row["amount"]}


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

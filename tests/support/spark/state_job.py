"""A driver script for queries with state, in a session that semel makes; arguments: SETTINGS.

The queries run side by side; each is a pipeline and a sink of its name, with a checkpoint of its
own. They end by themselves, but for the windows, which run until old state was removed. At the end
it says of which micro-batches Spark can restore the state of the windows.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sql

from semel.spark.deliver import deliver
from semel.spark.progress import CHANGELOG
from semel.spark.session import make_session
from semel.verify.demo.standalone import SMALL_JVM
from support.spark import class_archive, faults
from support.spark.charge_sinks import make_sink
from support.spark.query_job import PAYMENTS, say, source
from support.spark.settings import Settings
from support.spark.stateful_job import BEGAN_S, GIVEN, STEP_S, timed, windowed

BEFORE = 8
"""Each payment comes again this many payments later."""
FAILURES = 3
RETAINED = 2
PATIENCE_S = 60.0

STATE = {
    "spark.sql.streaming.minBatchesToRetain": str(RETAINED),
    "spark.sql.streaming.stateStore.maintenanceInterval": "500ms",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "2",
    "spark.sql.streaming.stateStore.rocksdb.compactOnCommit": "false",
}


def paired(frame: DataFrame) -> DataFrame:
    """A join of two streams: each payment with its refund of the second folder."""
    spark = frame.sparkSession
    where = spark.conf.get("spark.semel.second")
    other = spark.readStream.schema(PAYMENTS).option("maxFilesPerTrigger", 1).json(str(where))
    names = {"customer": "other_customer", "payment_id": "other_id", "amount": "other_amount"}
    second = timed(other).withColumnsRenamed({**names, "at": "other_at"})
    within = sql.expr("payment_id = other_id and other_at = at")
    found = timed(frame).join(second, within)
    both = (sql.col("amount") + sql.col("other_amount")).alias("amount")
    return found.select("customer", "payment_id", both)


def deduplicated(frame: DataFrame) -> DataFrame:
    """Each payment comes again later, often in the next file, and is kept once."""
    again = sql.expr(f"explode(array(payment_id, payment_id - {BEFORE}))")
    both = frame.withColumn("payment_id", again).where("payment_id >= 0")
    at = sql.timestamp_seconds(sql.col("payment_id") * STEP_S + BEGAN_S)
    late = both.withColumn("amount", sql.col("payment_id")).withColumn("at", at)
    late = late.withWatermark("at", "1 hour")
    return late.dropDuplicatesWithinWatermark(["payment_id"])


def alerts(frame: DataFrame) -> DataFrame:
    """The nth payment of customer c works if n is the last of 3 + c payments in a row."""
    from pyspark.sql.streaming.stateful_processor import (  # not every Spark has it
        StatefulProcessor,
        StatefulProcessorHandle,
    )

    class FailuresThenSuccess(StatefulProcessor):
        """A pattern: at least three failures of a customer, then a success."""

        def init(self, handle: StatefulProcessorHandle) -> None:
            self._failures = handle.getValueState("failures", "count bigint")

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
            known = self._failures.get()
            count = 0 if known is None else int(known[0])
            for row in sorted(rows, key=lambda each: each.payment_id):
                if not row.worked:
                    count += 1
                    continue
                if count >= FAILURES:
                    yield Row(customer=key[0], payment_id=row.payment_id, amount=count)
                count = 0
            self._failures.update((count,))

        def close(self) -> None:
            pass

    worked = sql.expr("payment_id div 4 % (3 + payment_id % 4) = 2 + payment_id % 4 as worked")
    grouped = frame.select("customer", "payment_id", worked).groupBy("customer")
    return grouped.transformWithState(FailuresThenSuccess(), PAYMENTS, "append", "None")


QUERIES: dict[str, tuple[Callable[[DataFrame], DataFrame], dict[str, Any]]] = {
    "windowed": (windowed, {"entity": "customer", "event": "window.start"}),
    "whole": (windowed, {"entity": "customer", "event": "window.start"}),
    "paired": (paired, GIVEN),
    "deduplicated": (deduplicated, GIVEN),
    "alerts": (alerts, GIVEN),
}


def main() -> None:
    settings = Settings.load(Path(sys.argv[1]))
    faults.install(settings.house, settings.steps)
    java = f"{SMALL_JVM} {class_archive.option()}"
    conf = {**STATE, "spark.driver.extraJavaOptions": java, **settings.conf}
    spark = make_session("state", master=settings.master, settings=conf)
    queries = [start(spark, settings, name) for name in QUERIES]
    windows, *others = queries
    for query in others:
        query.awaitTermination()
    windows.processAllAvailable()
    await_compaction(Path(f"{settings.checkpoint}-windowed"))
    newest = max(
        each["batchId"] for each in windows.recentProgress if "addBatch" in each["durationMs"]
    )
    windows.stop()
    for batch in (newest, newest - 1):
        states = spark.read.format("statestore").option("batchId", batch)
        say(f"restored {states.load(f'{settings.checkpoint}-windowed').count()}")
    say("finished")


def await_compaction(checkpoint: Path) -> None:
    """Wait until the first changelog is gone: Spark removes it in the background, and only while
    the query is active.
    """
    deadline = time.monotonic() + PATIENCE_S
    while list(checkpoint.glob("state/*/*/1.changelog")):
        if time.monotonic() > deadline:
            raise AssertionError(f"nothing was removed after {PATIENCE_S} s")
        time.sleep(0.2)


def start(spark: SparkSession, settings: Settings, name: str) -> Any:
    of, words = QUERIES[name]
    apart = spark.newSession()
    apart.conf.set("spark.sql.shuffle.partitions", "2")
    if name == "whole":
        apart.conf.set(CHANGELOG, "false")
    made = deliver(
        of(source(settings, apart)),
        to=make_sink("transactional", settings.house, name, **settings.sink_settings),
        name=name,
        ledger=settings.ledger,
        partitions=1,
        **words,
    )
    made = made.option("checkpointLocation", f"{settings.checkpoint}-{name}")
    if name == "windowed":
        return made.trigger(processingTime="0 seconds").start()
    return made.trigger(availableNow=True).start()


if __name__ == "__main__":
    main()

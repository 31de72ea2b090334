"""A driver script with one large micro-batch; arguments: ROWS IDENTITY FOLDER.

Prints JSON: how many rows arrived, the sum of their numbers, how many rows Spark read, and how many
megabytes a Python worker had at most.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import semel
from semel.spark.deliver import deliver
from semel.spark.session import make_session

FOLDER = Path(sys.argv[3]) if len(sys.argv) > 3 else Path()

IDENTITIES: dict[str, dict[str, Any]] = {
    "position": {"identity": "position"},
    "increasing": {"entity": "customer", "event": "number", "increasing": True},
    "given": {"entity": "customer", "event": "number"},
}


def counting(folder: str) -> semel.sinks.Function:
    """Give a sink that writes down how much came, and how large its process is."""

    def count(batch: pa.RecordBatch) -> None:
        told = {
            "rows": batch.num_rows,
            "sum": pc.sum(batch.column("number")).as_py(),
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        with (Path(folder) / "counted").open("a") as file:
            file.write(json.dumps(told) + "\n")

    return semel.sinks.Function(name="count", function=count, window=100_000, batches=True)


def main() -> None:
    rows, identity = int(sys.argv[1]), sys.argv[2]
    conf = {"spark.executor.pyspark.memory": "1g", "spark.driver.memory": "1g"}
    spark = make_session("large", master="local[1,4]", settings=conf)
    source = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", rows)
        .option("numPartitions", 1)
        .load()
        .selectExpr(
            "'t' as topic",
            "0 as partition",
            "value as offset",
            "cast(value % 1000 as string) as customer",
            "value as number",
            "concat('payment-', cast(value as string), repeat('x', 40)) as note",
        )
    )
    words = IDENTITIES[identity]
    if identity != "position":
        words = {**words, "partitions": 1}
    ledger = f"sqlite:///{FOLDER}/ledger.db"
    writer = deliver(source, to=counting(str(FOLDER)), name="large", ledger=ledger, **words)
    query = writer.option("checkpointLocation", str(FOLDER / "checkpoint")).start()
    while not query.recentProgress:
        error = query.exception()
        if error is not None:
            raise error
        time.sleep(0.2)
    progress = query.recentProgress[0]
    query.stop()
    lines = [json.loads(line) for line in (FOLDER / "counted").read_text().splitlines()]
    first = [line for line in lines if line["sum"] < rows * line["rows"]]  # of batch 0 alone
    told = {
        "rows": sum(line["rows"] for line in first),
        "sum": sum(line["sum"] for line in first),
        "read": progress["numInputRows"],
        "peak_mb": max(line["peak_mb"] for line in lines),
        "seconds": progress["durationMs"]["addBatch"] / 1000,
    }
    sys.stdout.write(json.dumps(told) + "\n")
    spark.stop()


if __name__ == "__main__":
    main()

"""A job whose sink is misspelt: it waits for its query in each way that Spark has, then runs a
batch, and shows every error.

Arguments: the master (or the URL of a Spark Connect server) and a folder.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Any

import semel
from semel.spark.session import make_session

BETWEEN = "-- the next --"


def charge(event: semel.Event) -> None:
    reqeusts.post("http://service/", json=event.value)  # type: ignore[name-defined] # noqa: F821


def started(writer: Any) -> Any:
    """Start it; on a busy machine a Connect server may not wait long enough for its Python."""
    for left in reversed(range(10)):
        try:
            return writer.start()
        except Exception as error:
            if not left or "connect back" not in str(error):
                raise
    raise AssertionError("the last try returns or raises")


def main() -> None:
    master, folder = sys.argv[1], Path(sys.argv[2])
    remote = master.startswith("sc://")
    spark: Any
    if remote:
        from pyspark.sql import SparkSession

        spark = SparkSession.builder.remote(master).getOrCreate()
    else:
        spark = make_session("broken", settings={"spark.local.dir": str(folder)})
    folder.joinpath("in").mkdir()
    rows = [f'{{"c": "{entity}", "id": {at}}}' for at, entity in enumerate("abcabc")]
    folder.joinpath("in", "rows.json").write_text("\n".join(rows))
    words: dict[str, Any] = {
        "to": semel.sink(name="charge")(charge),
        "entity": "c",
        "event": "id",
        "ledger": f"sqlite:///{folder / 'ledger.db'}",
        "partitions": 1,
    }
    schema, files = "c string, id bigint", str(folder / "in")
    stream = spark.readStream.schema(schema).json(files)
    writer = semel.deliver(stream, name="pay", **words).trigger(availableNow=True)
    query = started(writer.option("checkpointLocation", str(folder / "checkpoint")))
    waits = (query.awaitTermination, spark.streams.awaitAnyTermination, query.processAllAvailable)
    for wait in waits:
        try:
            wait()
        except Exception:
            traceback.print_exc()
        sys.stderr.write(f"{BETWEEN}\n")
    semel.deliver_batch(spark.read.schema(schema).json(files), name="pay", batch="d", **words)


if __name__ == "__main__":
    main()

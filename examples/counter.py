"""Deliver the output of a stateful query, which has no ids of its own: semel counts them.

`python examples/counter.py [FOLDER]` counts clicks in windows of ten minutes and announces every
window when it is closed (append mode). The ids of a page are 1, 2, 3, ... in the order of windows.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from pyspark.sql import functions as sql

import semel
from semel.spark.session import make_session


def write(clicks: Path, name: str, times: list[str]) -> None:
    """Let a file of clicks arrive, on two pages at each of the times."""
    rows = [{"page": page, "at": f"2026-01-01 {at}:00"} for at in times for page in ("a", "b")]
    (clicks / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def main(folder: Path) -> None:
    """Announce the closed windows of two files of clicks."""
    folder = folder.absolute()
    clicks, announced = folder / "clicks", folder / "announced.txt"
    clicks.mkdir(parents=True, exist_ok=True)
    spark = make_session("counter", settings={"spark.sql.session.timeZone": "UTC"})
    counts = (
        spark.readStream.schema("page string, at timestamp")
        .json(str(clicks))
        .withWatermark("at", "0 seconds")
        .groupBy("page", sql.window("at", "10 minutes"))
        .count()
        .select("page", sql.unix_seconds("window.start").alias("start"), "count")
    )

    @semel.sink
    def announce(event: semel.Event) -> None:
        line = f"page {event.entity}, window {event.id}: {event.value['count']} clicks"
        with announced.open("a") as file:
            file.write(line + "\n")

    for name, times in {"1": ["12:01", "12:02", "12:31"], "2": ["12:45", "12:55"]}.items():
        write(clicks, f"{name}.json", times)
        query = (
            semel.deliver(
                counts,
                to=announce,
                name="windows",
                identity="counter",
                entity="page",
                order_by="start",
                partitions=1,
                ledger=f"sqlite:///{folder}/ledger.db",
            )
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    print(announced.read_text(), end="")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="semel-counter-")))

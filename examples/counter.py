"""Deliver running totals, which have no ids of their own: semel counts them.

`python examples/counter.py [FOLDER]` counts clicks by page in update mode, and announces every new
total. The ids of a page are 1, 2, 3, ... in the order of its totals. (A closed window needs no
counter, because its start is its id: docs/start.md shows that.)
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import semel
from semel.spark import make_session


def main(folder: Path) -> None:
    """Announce the totals after each of three files of clicks."""
    folder = folder.absolute()
    clicks, announced = folder / "clicks", folder / "announced.txt"
    clicks.mkdir(parents=True, exist_ok=True)
    spark = make_session("counter")
    totals = spark.readStream.schema("page string").json(str(clicks)).groupBy("page").count()

    @semel.sink
    def announce(event: semel.Event) -> None:
        line = f"page {event.entity}, update {event.id}: {event.value['count']} clicks"
        with announced.open("a") as file:
            file.write(line + "\n")

    for name, pages in {"1": "aab", "2": "b", "3": "ab"}.items():
        rows = [json.dumps({"page": page}) + "\n" for page in pages]
        (clicks / f"{name}.json").write_text("".join(rows))
        query = (
            semel.deliver(
                totals,
                to=announce,
                name="totals",
                identity="counter",
                entity="page",
                order_by="count",
                partitions=1,
                ledger=f"sqlite:///{folder}/ledger.db",
            )
            .option("checkpointLocation", str(folder / "checkpoint"))
            .outputMode("update")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    print(announced.read_text(), end="")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="semel-counter-")))

"""Deliver a batch job under a name, three times, as a scheduler might run it.

`python examples/batch.py [FOLDER]` sends the reminders of one day. The second run sends nothing,
and the third, with other content under the same name, is refused.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import semel
from semel.spark import make_session


def main(folder: Path) -> None:
    """Run the same day three times."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    outbox = folder / "outbox.txt"
    spark = make_session("batch")

    @semel.sink
    def remind(event: semel.Event) -> None:
        with outbox.open("a") as file:
            file.write(f"dear {event.entity}, invoice {event.id} is due\n")

    due = [("ann", 1), ("bob", 2), ("eve", 3)]
    for rows in (due, due, [*due, ("joe", 4)]):
        frame = spark.createDataFrame(rows, "customer string, invoice bigint")
        try:
            done = semel.deliver_batch(
                frame,
                to=remind,
                name="reminders",
                batch="2026-01-31",
                entity="customer",
                event="invoice",
                ledger=f"sqlite:///{folder}/ledger.db",
            )
        except semel.Diverged as error:
            print(f"refused: {error}")
        else:
            print(f"events {done.events}, delivered now {done.delivered}, again: {done.again}")
    print(f"{len(outbox.read_text().splitlines())} reminders in {outbox}")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="semel-batch-")))

"""Deliver one stream to two sinks in one pass; each sink has its own records in the ledger.

`python examples/fan_out.py [FOLDER]` writes orders to an archive in batches and sends a mail for
each. An order whose address is refused is parked at the mail sink alone.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import semel
from semel.spark import make_session


def main(folder: Path) -> None:
    """Deliver six orders to both sinks."""
    folder = folder.absolute()
    orders, archive, mails = folder / "orders", folder / "archive.txt", folder / "mails.txt"
    orders.mkdir(parents=True, exist_ok=True)
    rows = [{"shop": "north", "number": n, "mail": f"c{n}@example.com"} for n in range(1, 6)]
    rows.append({"shop": "north", "number": 6, "mail": "invalid"})
    (orders / "1.json").write_text("".join(json.dumps(row) + "\n" for row in rows))

    @semel.sink(name="archive", window=1000, batches=True)
    def store(batch: Any) -> None:
        with archive.open("a") as file:
            file.writelines(f"{number}\n" for number in batch.column("number").to_pylist())

    @semel.sink(name="mail", on_reject="park")
    def send(event: semel.Event) -> None:
        if "@" not in event.value["mail"]:
            raise semel.Rejected(f"no such address: {event.value['mail']}")
        with mails.open("a") as file:
            file.write(f"{event.value['mail']}: order {event.id}\n")

    spark = make_session("fan out")
    frame = spark.readStream.schema("shop string, number bigint, mail string").json(str(orders))
    query = (
        semel.deliver(
            frame,
            to=[store, send],
            name="orders",
            entity="shop",
            event="number",
            partitions=1,
            ledger=f"sqlite:///{folder}/ledger.db",
        )
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    for name, file in {"archive": archive, "mail": mails}.items():
        print(f"{name}: {len(file.read_text().splitlines())} orders")
    print(f"parked: semel parked ls --ledger sqlite:///{folder}/ledger.db")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="semel-fan-out-")))

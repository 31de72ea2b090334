"""Write orders to Parquet files: each order once, and no half-written file is visible.

`python examples/files.py [FOLDER]` delivers three minibatches, deletes the checkpoint and reads all
orders again; the files that the manifests name contain each order once. At the end of each
minibatch a function gets its manifest, as a load into a warehouse would.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import semel
from semel.sinks import Files
from semel.sinks.files import committed, read
from semel.spark import make_session

if TYPE_CHECKING:
    from semel.sinks import Manifest

ORDERS = "customer string, order_id bigint, amount double"


def orders(folder: Path) -> None:
    """Write three files of orders."""
    folder.mkdir(parents=True)
    for number in range(3):
        rows = [
            {"customer": f"c{each % 3}", "order_id": number * 4 + each, "amount": each * 1.5}
            for each in range(4)
        ]
        (folder / f"{number}.json").write_text("\n".join(json.dumps(row) for row in rows))


def main(folder: Path) -> None:
    """Deliver, lose the checkpoint, deliver again, and read."""
    folder = folder.absolute()
    orders(folder / "orders")
    spark = make_session("files")
    loaded: list[int] = []

    def load(manifest: Manifest) -> None:
        loaded.append(manifest.rows)  # `PostgresLoad` runs a COPY here, exactly once

    lake = Files(name="lake", url=str(folder / "lake"), then=load)

    def deliver() -> None:
        frame = spark.readStream.schema(ORDERS).option("maxFilesPerTrigger", 1)
        query = (
            semel.deliver(
                frame.json(str(folder / "orders")),
                to=lake,
                name="orders",
                entity="customer",
                event="order_id",
                ledger=f"sqlite:///{folder}/ledger.db",
            )
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    place = f"{folder}/lake/orders/lake"
    deliver()
    found = list(committed(place))
    print(f"committed: {sum(each.rows for each in found)} orders in {len(found)} minibatches")
    print(f"rows in the manifest of each minibatch: {loaded}")
    shutil.rmtree(folder / "checkpoint")
    deliver()
    print(f"checkpoint lost, all read again: {sum(map(len, read(place)))} orders")
    urls = [url for manifest in committed(place) for url in manifest.urls]
    spark.read.parquet(*urls).groupBy("customer").sum("amount").orderBy("customer").show()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="semel-files-")))

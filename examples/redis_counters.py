"""Counters in Redis, exactly once (TRANSACTIONAL).

`python examples/redis_counters.py URL [FOLDER]` (or the URL in REDIS_URL) adds payments up, deletes
the checkpoint and reads them all again; the sums do not change. It uses keys `semel_demo:*` and
removes them at the end. A server to try it with: `docker run -d -p 6379:6379 redis:7`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from redis import Redis as Client

import semel
from semel.sinks import Redis
from semel.spark import make_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CUSTOMERS = ("c0", "c1", "c2")


def run(spark: SparkSession, url: str, folder: Path) -> dict[str, int]:
    """Add up the payments that have arrived; return the sums."""
    schema = "customer string, payment_id bigint, amount bigint"
    payments = spark.readStream.schema(schema).json(str(folder / "payments"))
    counters = Redis(
        name="counters",
        url=url,
        command="INCRBY",
        key="semel_demo:{customer}",
        arguments=("{amount}",),
    )
    query = (
        semel.deliver(
            payments,
            to=counters,
            name="semel_demo",
            entity="customer",
            event="payment_id",
            partitions=2,
            ledger=f"sqlite:///{folder}/ledger.db",
        )
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    with Client.from_url(url) as client:
        found = client.mget([f"semel_demo:{customer}" for customer in CUSTOMERS])
    return {name: int(value or 0) for name, value in zip(CUSTOMERS, found, strict=True)}


def main(url: str, folder: Path) -> None:
    """Count twelve payments, delete the checkpoint, and count again."""
    folder = folder.absolute()
    (folder / "payments").mkdir(parents=True, exist_ok=True)
    rows = [{"customer": f"c{n % 3}", "payment_id": n, "amount": n} for n in range(12)]
    (folder / "payments/1.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spark = make_session("redis")
    try:
        print(f"counted: {run(spark, url, folder)}")
        shutil.rmtree(folder / "checkpoint")
        print(f"checkpoint lost, read again: {run(spark, url, folder)}")
    finally:
        spark.stop()
        with Client.from_url(url) as client:
            for pattern in ("semel_demo:*", "semel:semel_demo/*"):
                for key in client.scan_iter(match=pattern):
                    client.delete(key)


if __name__ == "__main__":
    given = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("REDIS_URL")
    if given is None:
        sys.exit("usage: python examples/redis_counters.py redis://:password@host:6379/0 [FOLDER]")
    main(given, Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp(prefix="semel-redis-")))

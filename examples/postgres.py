"""`balance = balance + x` in PostgreSQL, exactly once (TRANSACTIONAL).

`python examples/postgres.py URL [FOLDER]` (or the URL in POSTGRES_URL) books payments, deletes the
checkpoint and reads them all again; the balances do not change. It creates a schema `semel_demo`
and drops it at the end.
A server to try it with: `docker run -d -p 5432:5432 -e POSTGRES_PASSWORD=secret postgres:17`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

import semel
from semel.sinks import Postgres
from semel.spark import make_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = """
create schema semel_demo;
create table semel_demo.balances (customer text primary key, balance bigint not null);
"""
BOOK = """
insert into semel_demo.balances as b
select customer, sum(amount) from semel_batch group by customer
on conflict (customer) do update set balance = b.balance + excluded.balance
"""


def run(spark: SparkSession, url: str, folder: Path) -> dict[str, int]:
    """Book the payments that have arrived; return the balances."""
    schema = "customer string, payment_id bigint, amount bigint"
    payments = spark.readStream.schema(schema).json(str(folder / "payments"))
    bookings = Postgres(name="bookings", url=url, apply=BOOK, schema="semel_demo")
    query = (
        semel.deliver(
            payments,
            to=bookings,
            name="bookings",
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
    with psycopg.connect(url) as connection:
        return dict(connection.execute("select * from semel_demo.balances order by 1").fetchall())


def main(url: str, folder: Path) -> None:
    """Book twelve payments, delete the checkpoint, and book again."""
    folder = folder.absolute()
    (folder / "payments").mkdir(parents=True, exist_ok=True)
    rows = [{"customer": f"c{n % 3}", "payment_id": n, "amount": n} for n in range(12)]
    (folder / "payments/1.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with psycopg.connect(url) as connection:
        connection.execute(TABLES)
    spark = make_session("postgres")
    try:
        print(f"booked: {run(spark, url, folder)}")
        shutil.rmtree(folder / "checkpoint")
        print(f"checkpoint lost, read again: {run(spark, url, folder)}")
    finally:
        spark.stop()
        with psycopg.connect(url) as connection:
            connection.execute("drop schema semel_demo cascade")


if __name__ == "__main__":
    given = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("POSTGRES_URL")
    if given is None:
        sys.exit("usage: python examples/postgres.py postgresql://user:password@host/db [FOLDER]")
    main(given, Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp(prefix="semel-pg-")))

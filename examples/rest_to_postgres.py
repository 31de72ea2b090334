"""Events over HTTP, windows in SQL, rows in PostgreSQL: each window is written once.

`python examples/rest_to_postgres.py URL [FOLDER]` (or the URL in POSTGRES_URL) starts `semel
ingest` with its inbox in PostgreSQL, sends clicks and counts them by page and minute. Between two
batches of clicks the query is stopped and started again; its windows go on. It creates a schema
`semel_demo` and drops it at the end; the inbox stays. (Needs PySpark 4.0 or later.)
A server to try it with: `docker run -d -p 5432:5432 -e POSTGRES_PASSWORD=secret postgres:17`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen
from uuid import uuid4

import psycopg

import semel
from semel.sinks import Postgres
from semel.spark import make_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = """
create schema semel_demo;
create table semel_demo.clicks (page text, minute timestamptz, clicks bigint);
"""
WINDOWS = """
select window.start as minute, entity as page, count(*) as clicks
from clicks group by window(time, '1 minute'), entity
"""
BATCHES = {
    "first": [("home", "09:00:10"), ("home", "09:00:50"), ("cart", "09:00:30")],
    "second": [("home", "09:01:20"), ("home", "09:00:55"), ("cart", "09:02:10")],
    "third": [("home", "09:10:00")],
}
"""Clicks: a window is written when the newest click is more than a minute behind its end."""


def start_ingress(ledger: str, stream: str) -> tuple[subprocess.Popen[str], str]:
    """Start `semel ingest` at a free port; return the process and the URL for events."""
    semel_command = str(Path(sys.executable).with_name("semel"))
    process = subprocess.Popen(
        [semel_command, "ingest", stream, "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SEMEL_LEDGER": ledger},
    )
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"http://\S+/v1/events", line):
            return process, found[0]
    sys.exit("semel ingest did not start")


def send(url: str, name: str) -> None:
    """Send clicks as one batch of CloudEvents; the page is the entity."""
    events = [
        {
            "specversion": "1.0",
            "id": f"{name}-{number}",
            "source": "/site",
            "type": "click",
            "subject": page,
            "time": f"2026-11-18T{time}Z",
        }
        for number, (page, time) in enumerate(BATCHES[name])
    ]
    headers = {"Content-Type": "application/cloudevents-batch+json"}
    with urlopen(Request(url, json.dumps(events).encode(), headers)) as response:
        stored = json.load(response)["events"]
    print(f"{name}: {len(stored)} clicks stored")


def count_clicks(spark: SparkSession, ledger: str, stream: str, folder: Path) -> None:
    """Write the windows that have ended by now."""
    source = spark.readStream.format("semel.inbox").options(ledger=ledger, stream=stream)
    source.load().withWatermark("time", "1 minute").createOrReplaceTempView("clicks")
    sink = Postgres(name="clicks", url=ledger, table="semel_demo.clicks", schema="semel_demo")
    query = (
        semel.deliver(
            spark.sql(WINDOWS),
            to=sink,
            name=stream,
            entity="page",
            event="minute",
            partitions=2,
            ledger=ledger,
        )
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main(url: str, folder: Path) -> None:
    """Send three batches of clicks, each followed by one run of the query."""
    stream = f"clicks-{uuid4().hex[:8]}"
    with psycopg.connect(url) as connection:
        connection.execute(TABLES)
    ingress, events = start_ingress(url, stream)
    spark = make_session("clicks")
    try:
        for name in BATCHES:
            send(events, name)
            count_clicks(spark, url, stream, folder.absolute())
        with psycopg.connect(url) as connection:
            rows = connection.execute(
                "select page, to_char(minute at time zone 'UTC', 'HH24:MI'), clicks"
                " from semel_demo.clicks order by 2, 1"
            ).fetchall()
        print(f"windows: {rows}")
    finally:
        spark.stop()
        ingress.terminate()
        ingress.wait()
        with psycopg.connect(url) as connection:
            connection.execute("drop schema semel_demo cascade")


if __name__ == "__main__":
    given = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("POSTGRES_URL")
    if given is None:
        sys.exit("usage: python examples/rest_to_postgres.py postgresql://user@host/db [FOLDER]")
    main(given, Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp(prefix="semel-rest-")))

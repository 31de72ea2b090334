"""The job of `semel demo`: one Spark session that delivers the same payments in two ways.

`python -m semel.verify.demo.job URL FOLDER SERVICE_S` runs until it gets SIGTERM, is killed, or one
of its queries fails. It is written as a user would write it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semel.errors import SemelError
from semel.runtime import SystemClock
from semel.sinks import sink
from semel.spark import deliver, make_session
from semel.verify.demo.charge_server import charge_client
from semel.verify.demo.standalone import SMALL_JVM

if TYPE_CHECKING:
    from semel.events import Event

NAME = "charges"
PLAIN, SEMEL = "plain", "semel"
PAYMENTS = "customer string, payment_id bigint, amount bigint"


def post(url: str, service_s: float, how: str, payment: dict[str, Any]) -> None:
    """Charge one payment, regardless of earlier charges: an effect that cannot be undone.

    Half of the time is spent before the call and half after it, so that kills hit both.
    """
    clock = SystemClock()
    clock.sleep(service_s / 2)
    charge = {
        "entity": payment["customer"],
        "event": payment["payment_id"],
        "amount": payment["amount"],
    }
    body = {"pipeline": how, "sink": how, "pid": os.getpid(), "charges": [charge]}
    charge_client(url).ask("/charge", body)
    clock.sleep(service_s / 2)


def run(url: str, folder: Path, service_s: float) -> None:
    """Start both queries and watch them until SIGTERM."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    spark = make_session(
        "semel demo",
        master="local[4,4]",
        settings={
            "spark.driver.extraJavaOptions": (
                f"{SMALL_JVM} -XX:-UsePerfData -Djava.io.tmpdir={folder / 'local'}"
            ),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        },
    )
    reader = spark.readStream.schema(PAYMENTS).option("maxFilesPerTrigger", 1)
    payments = reader.json(str(folder / "payments"))
    writers = {
        PLAIN: write_plain(payments, partial(post, url, service_s, PLAIN)),
        NAME: write_once(payments, partial(post, url, service_s, SEMEL)),
    }
    queries = [
        writer.option("checkpointLocation", str(folder / "checkpoints" / name))
        .trigger(processingTime="200 milliseconds")
        .start()
        for name, writer in writers.items()
    ]
    while not stopped.wait(0.2):
        for query in queries:
            if (failure := query.exception()) is not None:
                raise SemelError(str(failure))
    for query in queries:
        query.stop()
    spark.stop()


def write_plain(payments: Any, charge: Any) -> Any:
    """Return the usual `foreachBatch`."""

    def charge_each(rows: Any) -> None:
        for row in rows:
            charge(row.asDict())

    return payments.writeStream.foreachBatch(
        lambda batch, _number: batch.foreachPartition(charge_each)
    )


def write_once(payments: Any, charge: Any) -> Any:
    """Return the same function as a semel sink, with the default ledger.

    The destination answers within five seconds, so a resend need not wait longer.
    """

    @sink(name="charge", window=1, on_doubt="hold", lease_s=5, deadline_s=5)
    def charge_once(event: Event) -> None:
        charge(event.value)

    return deliver(
        payments,
        to=charge_once,
        name=NAME,
        entity="customer",
        event="payment_id",
        partitions=2,
    )


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))

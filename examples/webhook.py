"""A webhook that answers with what became of its event.

`python examples/webhook.py [FOLDER]` starts `semel ingest` and a query that reads its inbox, and
sends three orders. Each is answered when it was delivered: `Prefer: wait=60` waits for that. An
order that the shop rejects is parked, and the answer says so. (Needs PySpark 4.0 or later.)
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import semel
from semel.errors import Rejected
from semel.spark import make_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ORDERS = {"order-1": {"amount": 7}, "order-2": {"amount": -1}, "order-3": {"amount": 5}}


def start_ingress(ledger: str) -> tuple[subprocess.Popen[str], str]:
    """Start `semel ingest` at a free port; return the process and the URL for events."""
    semel_command = str(Path(sys.executable).with_name("semel"))
    process = subprocess.Popen(
        [semel_command, "ingest", "orders", "--ledger", ledger, "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"http://\S+/v1/events", line):
            return process, found[0]
    sys.exit("semel ingest did not start")


def deliver_orders(orders: DataFrame, ledger: str, folder: Path) -> Any:
    """Return the writer of a query that ships each order once."""

    @semel.sink
    def ship(event: semel.Event) -> None:
        order = json.loads(event.value["value"])
        if order["amount"] < 0:
            raise Rejected(f"an amount of {order['amount']}")
        with (folder / "shipped.txt").open("a") as file:
            file.write(f"{event.entity} {event.id} {order['amount']}\n")

    return semel.deliver(
        orders,
        to=ship,
        name="shipping",
        entity="entity",
        event="event",
        increasing=True,
        partitions=1,
        ledger=ledger,
    ).option("checkpointLocation", str(folder / "checkpoint"))


def send(url: str, id_: str, order: dict[str, int]) -> dict[str, Any]:
    """Send an order as the webhook of a shop would, and return the answer about it."""
    headers = {
        "Content-Type": "application/json",
        "Semel-Entity": "customer-42",
        "Idempotency-Key": id_,
        "Prefer": "wait=60",
    }
    with urlopen(Request(url, json.dumps(order).encode(), headers)) as response:
        [answer] = json.load(response)["events"]
    found: dict[str, Any] = answer
    return found


def main(folder: Path) -> None:
    """Send three orders, and one of them again."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    ledger = f"sqlite:///{folder}/orders.db"
    ingress, url = start_ingress(ledger)
    spark = make_session("webhook")
    try:
        source = spark.readStream.format("semel.inbox")
        orders = source.options(ledger=ledger, stream="orders", latency="1s").load()
        query = deliver_orders(orders, ledger, folder).start()
        for id_, order in [*ORDERS.items(), ("order-1", ORDERS["order-1"])]:
            answer = send(url, id_, order)
            [outcome] = answer["outcomes"]  # of each sink of each pipeline: here it is one
            again = ", sent again" if answer["repeat"] else ""
            shipped = outcome["state"] in ("delivered", "handled")
            what = "shipped" if shipped else outcome["state"]
            print(f"{id_} is event {answer['event']}{again}: {what}")
        query.stop()
        print(f"shipped:\n{(folder / 'shipped.txt').read_text()}", end="")
    finally:
        spark.stop()
        ingress.terminate()
        ingress.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="semel-webhook-")))

"""Charge payments over HTTP, each once: a plain function as a sink (OPAQUE), ids from columns.

`python examples/charges.py [FOLDER]` starts a small bank as an HTTP server and charges payments
from a stream of files. It writes everything into FOLDER, by default a temporary one.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import semel
from semel.spark import make_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

charged: list[str] = []


class Bank(BaseHTTPRequestHandler):
    """The destination: it charges every request, also a repeated one."""

    def do_POST(self) -> None:
        """Charge, or refuse an amount of zero or less."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["amount"] <= 0:
            self.send_error(422, "the amount must be positive")
            return
        charged.append(f"{body['customer']}/{body['payment_id']}")
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


bank = ThreadingHTTPServer(("127.0.0.1", 0), Bank)
BANK = f"http://127.0.0.1:{bank.server_port}"


@semel.sink(window=1, on_doubt="hold")  # OPAQUE; at most one event in doubt per partition and crash
def charge(event: semel.Event) -> None:  # event.entity, .id, .osn, .key, .value
    """Charge one payment."""
    request = Request(BANK, json.dumps(event.value).encode())
    try:
        urlopen(request, timeout=10).close()
    except HTTPError as error:
        if error.code == 422:
            raise semel.Rejected(str(error)) from error  # nothing arrived, nothing ever will
        raise  # anything else means: it may have arrived


def start(payments: DataFrame) -> StreamingQuery:
    """Charge every payment of the stream, each once."""
    return (
        semel.deliver(
            payments,
            to=charge,
            name="charges",
            entity="customer",
            event="payment_id",
            ledger="sqlite:///charges.db",
        )
        .option("checkpointLocation", "checkpoints/charges")
        .trigger(availableNow=True)
        .start()
    )


def main(folder: Path) -> None:
    """Charge six payments, one of which the bank refuses; then start again without new input."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    Path("payments").mkdir(exist_ok=True)
    rows = [
        {"customer": f"c{number % 2}", "payment_id": number, "amount": 10 * number}
        for number in range(6)
    ]
    Path("payments/1.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    threading.Thread(target=bank.serve_forever, daemon=True).start()
    spark = make_session("charges")
    payments = spark.readStream.schema("customer string, payment_id bigint, amount bigint")
    for number in (1, 2):
        start(payments.json("payments")).awaitTermination()
        print(f"after start {number}: {len(charged)} charges of {len(set(charged))} payments")
    print(f"look at it: cd {folder} && semel parked ls --ledger sqlite:///charges.db")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="semel-charges-")))

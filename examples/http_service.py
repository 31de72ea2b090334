"""Charge payments at a bank that supports the Idempotency-Key header: one effect (REPEATABLE).

`python examples/http_service.py [FOLDER] [URL]` charges the bank at URL; without a URL it starts a
small bank, which loses one of its answers. It writes everything into FOLDER.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import semel
from semel.sinks import Http
from semel.spark import make_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

charged: dict[str, str] = {}
requests: list[str] = []


class Bank(BaseHTTPRequestHandler):
    """The destination: it answers a key that it has seen, and does not charge again."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Charge, unless the key is known."""
        key, text = self.headers["Idempotency-Key"], self.headers["Content-Length"]
        body = json.loads(self.rfile.read(int(text)))
        requests.append(key)
        charged.setdefault(key, f"{self.path} {body['amount']}")
        if len(requests) == 5:
            self.close_connection = True  # charged, but the answer is lost
            return
        self.send_response(201)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def run(spark: SparkSession, folder: Path, url: str) -> None:
    """Charge what has arrived."""
    schema = "customer string, payment_id bigint, amount bigint"
    payments = spark.readStream.schema(schema).json(str(folder / "payments"))
    bank = Http(
        name="bank",
        url=url + "/customers/{customer}/charges",
        body={"amount": "{amount}", "reference": "payment {payment_id}"},
        idempotency=True,  # REPEATABLE: the bank repeats its first answer for a known key
        remembers_s=24 * 3600,
        timeout_s=5.0,
    )
    query = (
        semel.deliver(
            payments,
            to=bank,
            name="charges",
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


def main(folder: Path, url: str | None) -> None:
    """Charge twelve payments, delete the checkpoint, and read them all again."""
    folder = folder.absolute()
    (folder / "payments").mkdir(parents=True, exist_ok=True)
    rows = [{"customer": f"c{n % 3}", "payment_id": n, "amount": 10 * n} for n in range(12)]
    (folder / "payments/1.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if url is None:
        bank = ThreadingHTTPServer(("127.0.0.1", 0), Bank)
        threading.Thread(target=bank.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{bank.server_port}"
    spark = make_session("http service")
    for words in ("after start 1", "after start 2", "checkpoint lost, read again"):
        if words.startswith("checkpoint"):
            shutil.rmtree(folder / "checkpoint")
        run(spark, folder, url)
        print(f"{words}: {len(charged)} charges of {len(rows)} payments")
    print(f"{len(requests)} requests, {len(requests) - len(charged)} of them absorbed")
    spark.stop()


if __name__ == "__main__":
    where = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="semel-http-")
    main(Path(where), sys.argv[2] if len(sys.argv) > 2 else None)

"""A command that imports a script looks at it: real Spark, real calls, and none of them is made."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from semel.verify.demo.standalone import SMALL_JVM, spark_environment
from semel.verify.process_group import ProcessGroup

PATIENCE_S = 300.0

SCRIPT = """
import threading
import time

import semel
from semel.spark.session import make_session

charge = semel.sinks.Http(name="charge", url="WITNESS/{payment_id}")
spark = make_session("payments")
schema = "customer string, payment_id bigint"
names = {"to": charge, "entity": "customer", "event": "payment_id", "ledger": "sqlite:///pay.db"}
frame = spark.readStream.schema(schema).json("payments")
writer = semel.deliver(frame, name="charges", **names).option("checkpointLocation", "checkpoint")
writer = writer.trigger(availableNow=True)


def later():
    time.sleep(3)
    writer.start().awaitTermination()


threading.Thread(target=later).start()
try:
    semel.deliver_batch(spark.read.schema(schema).json("payments"), name="b", batch="1", **names)
except Exception as error:
    print(error)
writer.start().awaitTermination()
"""


class Witness(BaseHTTPRequestHandler):
    """Remembers every call."""

    calls: list[bytes]

    def do_POST(self) -> None:
        self.calls.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def witness() -> Iterator[tuple[str, list[bytes]]]:
    calls: list[bytes] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Witness,), {"calls": calls}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", calls
    server.shutdown()
    thread.join()
    server.server_close()


def test_explaining_a_script_that_runs_its_pipeline_makes_no_call(
    witness: tuple[str, list[bytes]], tmp_path: Path
) -> None:
    url, calls = witness
    log = tmp_path / "log.txt"
    with ProcessGroup("looking") as group:
        folder = group.folder
        (folder / "pay.py").write_text(SCRIPT.replace("WITNESS", url))
        (folder / "payments").mkdir()
        (folder / "payments/1.json").write_text('{"customer": "c1", "payment_id": 1}\n')
        environment = spark_environment(folder) | {"JAVA_TOOL_OPTIONS": SMALL_JVM}
        command = [sys.executable, "-c", "from semel.cli.main import main; main()"]
        explained = group.start([*command, "explain", "pay:charge"], environment, log)
        code = explained.wait(PATIENCE_S)
        ledger = (folder / "pay.db").exists()
    said = log.read_text(errors="replace")
    assert calls == [], said
    assert code == 2, said
    assert "pipeline 'b': semel.deliver_batch(...) is refused while `semel` imports 'pay'" in said
    told = "semel: pipeline 'charges': start() is refused while `semel` imports 'pay'"
    assert told in said
    assert said.count("start() is refused while") == 2  # the thread's too, though it came later
    assert 'under `if __name__ == "__main__":`' in said
    assert not ledger

"""Metrics on real Spark: they agree with a witness over kills, and end with their query."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql.streaming.listener import StreamingQueryListener

import semel
from semel.errors import ConfigurationError
from semel.monitoring import Alert
from semel.spark import delivered_by
from semel.verify.demo.standalone import ConnectServer
from semel.verify.process_group import ProcessGroup
from semel.verify.servers.ports import free_port
from support.audit import audit_findings, audit_rows
from support.docs_blocks import ON_SPARK, PageReader, blocks
from support.spark import query_job
from support.spark.driver_scripts import Bed, Run, assert_once, wait_for
from support.spark.pipeline_place import TIMEOUT_S, PipelinePlace
from support.spark.sessions import Desk

STARTS_MAX = 4


def scrape(port: int) -> Counter[str]:
    """Sum up each metric over its labels; nothing where no server answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except (urllib.error.URLError, OSError):
        return Counter()
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] += int(sample.value)
    return found


@pytest.mark.rows("N3", "O20")
def test_metrics_of_all_starts_together_agree_with_a_witness_over_kills(bed: Bed) -> None:
    """Workers die around an effect, and the driver dies between two minibatches."""
    bed.payments(files=5, rows=12)
    port = free_port()
    settings = bed.settings(
        sink="transactional",
        sink_settings={"chunk_rows": 2, "steps": ["effect.before", "effect.after"]},
        master="local[2,12]",
        trigger=3.0,
        steps=["batch.before"],
        words={"partitions": 2, "metrics": port},
    )
    bed.house.arm("effect.before", after=3)
    bed.house.arm("effect.after", after=9)
    bed.house.arm("batch.before", after=3)
    last: list[Counter[str]] = []
    for _ in range(STARTS_MAX):
        last.append(Counter())
        run = bed.start(settings)
        if followed(run, port, last, len(bed.expected)):
            break
    assert len(last) == 2, "the driver was killed once"
    total = sum(last, Counter[str]())
    charges = bed.house.charges()
    assert_once(charges, bed.expected)
    assert total["semel_events_delivered_total"] == len(charges) == 60
    assert total["semel_minibatches_total"] == 5
    assert total["semel_events_suppressed_total"] >= 2, "an attempt died after an effect"
    assert [each["semel_minibatches_total"] for each in last] == [3, 2]
    assert {each.name for each in bed.house.taken()} == {
        "batch.before",
        "effect.before",
        "effect.after",
    }
    assert scrape(port) == Counter()


def followed(run: Run, port: int, last: list[Counter[str]], wanted: int) -> bool:
    """Keep the newest figures until everything is delivered, then kill the driver; False if it died
    before.
    """
    ends = time.monotonic() + 400
    while run.process.poll() is None:
        last[-1] = scrape(port) or last[-1]
        if sum(last, Counter[str]())["semel_events_delivered_total"] >= wanted:
            run.kill()
            run.wait()
            return True
        assert time.monotonic() < ends, run.said()
        time.sleep(0.2)
    return False


class Listener(StreamingQueryListener):
    """Keeps what Spark reports, and what semel knows of the same micro-batch."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[Any, dict[str, Any] | None]] = {}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        return

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        return

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        return

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        self.seen[event.progress.batchId] = (event.progress, delivered_by(event.progress))


@pytest.mark.rows("O20")
def test_the_progress_of_spark_has_what_semel_delivered(desk: Desk) -> None:
    desk.payments(files=3, rows=10)
    listener = Listener()
    desk.spark.streams.addListener(listener)
    port, alerts = free_port(), list[Alert]()
    writer = desk.writer(desk.settings(words={"metrics": port, "alert": alerts.append}))
    try:
        query = writer.start()
        query.awaitTermination()
        wait_for(lambda: len(listener.seen) == 3)
    finally:
        desk.spark.streams.removeListener(listener)
    assert len(desk.charges()) == 30
    newest: Any = query.lastProgress
    for progress in (newest, *query.recentProgress):
        assert progress["semel"]["delivered"] == progress["numInputRows"] == 10
    printed = getattr(newest, "json", None)  # a plain dict before PySpark 4.0
    assert printed is None or json.loads(printed)["semel"]["minibatch"] == "1.2"
    for batch, (progress, known) in listener.seen.items():
        assert known is not None
        assert (known["minibatch"], known["delivered"]) == (f"1.{batch}", 10)
        # What Spark itself could carry: neither is there for a sink behind foreachBatch.
        assert progress.sink.numOutputRows == -1
        assert not progress.sink.metrics
        assert not progress.observedMetrics
    assert delivered_by({"id": "another", "batchId": 0}) is None
    wait_for(lambda: not scrape(port))
    assert alerts == []


def test_a_port_in_use_refuses_the_start_before_any_event_moves(desk: Desk) -> None:
    desk.payments(files=1, rows=5)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        writer = desk.writer(desk.settings(words={"metrics": port}))
        with pytest.raises(ConfigurationError, match=f"metrics cannot be served at .*:{port}: "):
            writer.start()
    assert desk.charges() == []
    assert not desk.spark.streams.active


def test_the_page_on_operating_runs_as_printed(
    desk: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its pipeline with metrics, its listener and its alert."""
    port = free_port()
    places = {
        '"checkpoints/charges"': repr(str(tmp_path / "checkpoint")),
        "sqlite:///charges.db": f"sqlite:///{tmp_path}/charges.db",
        "metrics=9108": f"metrics={port}, alert=tell",
    }
    reader = PageReader("docs/operating.md", places)
    printed = blocks(reader.page, "python")
    for number in ON_SPARK[reader.page]:
        reader.run(printed[number])
    names = reader.names
    desk.payments(files=1, rows=4)
    frame = query_job.source(desk.settings(), desk.spark)
    listener = names["Printed"]()
    desk.spark.streams.addListener(listener)
    charge = semel.sink(window=1, on_doubt="hold", name="charge")(refusing)
    query = names["start"](frame, charge)
    try:
        wait_for(lambda: scrape(port)["semel_alerts_sent_total"] == 1, timeout_s=120)
        found = scrape(port)
        wait_for(lambda: "'delivered': 3" in capsys.readouterr().out, timeout_s=60)
    finally:
        query.stop()
        desk.spark.streams.removeListener(listener)
    assert found["semel_events_delivered_total"] == 3
    assert found["semel_events_parked_total"] == 1


def refusing(event: semel.Event) -> None:
    """Take all but one event."""
    if event.id == 2:
        raise semel.Rejected("not this one")


def test_through_connect_the_endpoint_is_beside_the_server(
    bed: Bed, connect: ConnectServer
) -> None:
    bed.payments(files=2, rows=6)
    port = free_port()
    words = {"partitions": 2, "metrics": port}
    run = bed.start(bed.settings(master=connect.url, delay_s=0.5, words=words))
    wait_for(lambda: scrape(port)["semel_events_delivered_total"] >= 6, run, 240)
    run.finished()
    assert_once(bed.house.charges(), bed.expected)
    wait_for(lambda: not scrape(port))


FILE = """
[pipeline]
name = "charges"
ledger = "sqlite:///charges.db"
checkpoint = "checkpoints/charges"
alert = "own:tell"
audit = "audit"
metrics = "127.0.0.1:PORT"

[source]
format = "json"
schema = "customer string, payment_id bigint, amount bigint"
options = { path = "payments", maxFilesPerTrigger = "1", note = "${file:token}" }

[identity]
entity = "customer"
event = "payment_id"

[[sinks]]
type = "own:charge"
"""

OWN = """
import os

import semel


def tell(alert):
    with open(os.environ["SEMEL_TEST_FOLDER"] + "/alerts.txt", "a") as out:
        out.write(f"{alert.sink} {alert.parked} {alert.waiting}\\n")


@semel.sink(window=1)
def charge(event):
    if event.id == 4:
        with open(os.environ["SEMEL_TEST_FOLDER"] + "/token") as token:
            raise semel.Rejected(f"not this one: https://bank.example/?key={token.read()}")
"""


def test_a_pipeline_file_runs_with_metrics_an_alert_an_audit_log_and_lines_as_json(
    tmp_path: Path,
) -> None:
    with ProcessGroup("metrics-file") as group:
        place = PipelinePlace(tmp_path, group)
        place.payments(2, 5)
        (place.folder / "own.py").write_text(OWN)
        (place.folder / "token").write_text("hunter2-token")
        file = place.folder / "charges.toml"
        file.write_text(FILE.replace("PORT", str(free_port())))
        run = place.start("run", str(file), "--once", "--log-format", "json")
        run.finished(TIMEOUT_S)
        lines = [json.loads(each) for each in run.said().splitlines() if each.startswith("{")]
        found = [each for each in lines if "minibatch" in each]
        assert [each["minibatch"] for each in found] == ["1.0", "1.1"]
        assert sum(each["delivered"] for each in found) == 9
        assert sum(each["parked"] for each in found) == 1
        assert any("metrics at http://127.0.0.1:" in each["message"] for each in lines)
        assert "per_s" in found[0]
        assert (place.folder / "alerts.txt").read_text() == "charge 1 1\n"
        known = {(f"c{each % 5}", str(each)): "delivered" for each in range(10)}
        known["c4", "4"] = "parked"
        assert audit_findings(place.folder / "audit", "charges", known) == []
        [refused] = [each for each in audit_rows(place.folder / "audit", "charges") if each["why"]]
        assert refused["why"] == "not this one: https://bank.example/?key=***"
        assert "hunter2" not in run.said()
        for each in place.folder.glob("*.db*"):
            assert b"hunter2" not in each.read_bytes()

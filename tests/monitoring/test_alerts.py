"""Alerts about parked events: never waited for, never lost silently, never with a payload."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from semel.delivery import EventResent, Figures, MinibatchCompleted
from semel.errors import ConfigurationError
from semel.events import Minibatch
from semel.ledger import make_key, open_store
from semel.ledger.store import Put
from semel.monitoring import Alert, Monitor, Monitoring
from semel.monitoring import alerts as subject
from semel.monitoring.parked_figures import ParkedFigures
from semel.protocol import ParkedState
from support.pipeline import StillClock

WAIT_S = 20


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/ledger.db"
    with closing(open_store(url)) as store:
        store.commit([], [Put(make_key("parked", "another"), "{}")])
    return url


def monitored(ledger: str, alert: str | Callable[[Alert], object]) -> Monitor:
    monitor = Monitoring(alert=alert).open("pay", ["out"], ledger, lambda: True)
    assert monitor is not None
    return monitor


def parked(batch: int = 0, count: int = 2, doubted: int = 1, dropped: int = 0) -> Any:
    figures = {"out": Figures(delivered=5, parked=count, doubted=doubted, dropped=dropped)}
    return MinibatchCompleted("pay", Minibatch(1, batch), figures)


def counts(monitor: Monitor) -> tuple[float, float]:
    """How many alerts were sent, and how many dropped, by the metrics."""
    found = {each.metric.name: each.value for each in monitor.samples()}
    sent, dropped = found["semel_alerts_sent_total"], found["semel_alerts_dropped_total"]
    assert isinstance(sent, int)
    assert isinstance(dropped, int)
    return sent, dropped


@contextmanager
def server(
    status: int = 204, headers: Mapping[str, str] | None = None
) -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """A server that keeps what is posted to it."""
    posted: list[tuple[str, dict[str, Any]]] = []

    class Door(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["Content-Length"]))
            posted.append((self.headers["Content-Type"], json.loads(text)))
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()

        def do_GET(self) -> None:
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            return

    http = HTTPServer(("127.0.0.1", 0), Door)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}/hook?token=s3cret", posted
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def test_a_url_gets_names_and_counts_and_nothing_else(ledger: str) -> None:
    with server() as (url, posted):
        monitor = monitored(ledger, url)
        monitor.observe(parked())
        monitor.observe(MinibatchCompleted("pay", Minibatch(1, 1), {"out": Figures(delivered=9)}))
        monitor.close()
    assert posted == [
        (
            "application/json",
            {
                "pipeline": "pay",
                "sink": "out",
                "minibatch": "1.0",
                "parked": 2,
                "in_doubt": 1,
                "dropped": 0,
                "waiting": 0,
                "oldest_s": None,
            },
        )
    ]
    assert counts(monitor) == (1, 0)


def test_a_function_that_never_returns_delays_nothing_and_what_waits_is_one_alert(
    ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "LEAVE_S", 0.2)
    seen: list[Alert] = []
    first, go = threading.Event(), threading.Event()

    def slow(alert: Alert) -> None:
        seen.append(alert)
        first.set()
        go.wait(WAIT_S)

    monitor = monitored(ledger, slow)
    monitor.observe(parked(0))
    assert first.wait(WAIT_S)
    for batch in range(1, 1_001):
        monitor.observe(parked(batch))
    assert len(monitor._alerts._waiting) == 1  # type: ignore[union-attr]
    monitor.close()
    assert counts(monitor) == (0, 1), "what was not sent when the query ended is counted"
    go.set()
    assert [(each.minibatch, each.parked) for each in seen] == [("1.0", 2)]


def test_alerts_that_wait_are_added_up(ledger: str) -> None:
    seen: list[Alert] = []
    first, go = threading.Event(), threading.Event()

    def slow(alert: Alert) -> None:
        seen.append(alert)
        first.set()
        go.wait(WAIT_S)

    monitor = monitored(ledger, slow)
    monitor.observe(parked(0))
    assert first.wait(WAIT_S)
    for batch in range(1, 11):
        monitor.observe(parked(batch, dropped=1))
    state = ParkedState.HELD
    monitor.observe(EventResent("pay", "out", "a", (1,), 2, "ann", "held (why)", state))
    go.set()
    monitor.close()
    assert [(each.parked, each.in_doubt, each.dropped) for each in seen] == [
        (2, 1, 0),
        (21, 11, 10),
    ]
    assert seen[1].minibatch == "1.10"


@pytest.mark.parametrize("by", ["function", "status", "nobody"])
def test_a_failing_alert_is_tried_again_then_dropped_counted_and_logged_without_its_secret(
    by: str, ledger: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(subject, "PAUSE_S", 0.01)
    calls: list[Alert] = []

    def fails(alert: Alert) -> None:
        calls.append(alert)
        raise ValueError("no")

    with server(500) as (url, posted), caplog.at_level(logging.WARNING, logger="semel"):
        target = {"function": fails, "status": url}.get(by, "http://127.0.0.1:1/x?token=s3cret")
        monitor = monitored(ledger, target)  # type: ignore[arg-type]
        monitor.observe(parked())
        for _ in range(int(WAIT_S / 0.05)):
            if counts(monitor)[1]:
                break
            threading.Event().wait(0.05)
        monitor.close()
    assert counts(monitor) == (0, 1)
    assert len(calls) + len(posted) == (0 if by == "nobody" else subject.TRIES)
    [said] = [each for each in caplog.messages if "an alert was not taken" in each]
    assert "s3cret" not in said
    words = {"function": "ValueError('no')", "status": "/hook answered 500", "nobody": "URLError"}
    assert words[by] in said


@pytest.mark.parametrize(
    ("alert", "why"),
    [
        ("alerts.example", "must be a URL such as https://alerts.example/semel"),
        ("ftp://alerts.example/x", "must be a URL such as"),
        ("https://user:pa/ss@alerts.example/", "is not a URL that can be read"),
        (7, "must be a URL or a function of one alert, got int"),
        (Alert, "must be a URL or a function of one alert, got type"),
    ],
)
def test_what_is_no_alert_is_refused_before_anything_starts(alert: Any, why: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Monitoring(alert=alert).check("pay")
    assert why in str(refused.value)
    assert "pa/ss" not in str(refused.value)


def test_an_alert_that_is_sent_elsewhere_is_not_taken(
    ledger: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A redirected POST would become a GET without the alert, and count as sent."""
    monkeypatch.setattr(subject, "PAUSE_S", 0.01)
    with server(302, {"Location": "/elsewhere"}) as (url, posted):
        monitor = monitored(ledger, url)
        monitor.observe(parked())
        monitor.close()
    assert counts(monitor) == (0, 1)
    assert len(posted) == subject.TRIES
    assert "answered 302" in caplog.text


def test_alerts_read_the_parked_events_as_seldom_as_the_metrics(ledger: str) -> None:
    """With very many parked events each reading takes long, and alerts may come all the time."""
    clock = StillClock()
    reads: list[float] = []

    class Slow(ParkedFigures):
        def _scanned(self) -> Any:
            reads.append(clock.now)
            clock.move(3.0)
            return super()._scanned()

    seen: list[Alert] = []
    alerts = subject.Alerts("pay", seen.append, Slow("pay", ["out"], ledger, clock), clock)
    for batch in range(200):
        alerts.observe(parked(batch))
        alerts.send_next()
        clock.move(1.0)
    assert len(seen) == 200
    assert len(reads) <= 200 / 60 + 2
    assert [each.waiting for each in seen[:2]] == [0, None], "what is not known is not said"


def test_an_alert_waits_a_moment_for_its_turn_to_read(ledger: str) -> None:
    """Two sinks park in one minibatch: both alerts know what is parked."""
    clock = StillClock()
    seen: list[Alert] = []
    alerts = subject.Alerts(
        "pay", seen.append, ParkedFigures("pay", ["a", "b"], ledger, clock), clock
    )
    each = Figures(parked=1)
    alerts.observe(MinibatchCompleted("pay", Minibatch(1, 0), {"a": each, "b": each}))
    alerts.send_next()
    alerts.send_next()
    assert [(each.sink, each.waiting) for each in seen] == [("a", 0), ("b", 0)]

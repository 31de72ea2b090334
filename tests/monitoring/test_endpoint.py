"""The endpoint that Prometheus reads: one for each address, and gone with the last pipeline."""

from __future__ import annotations

import socket
import struct
import threading
import time
import tracemalloc
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from semel.delivery import (
    Figures,
    MarkerChosen,
    MinibatchCompleted,
    MinibatchOpened,
    QueryProgressed,
)
from semel.errors import ConfigurationError
from semel.events import Minibatch
from semel.ledger import (
    LedgerClient,
    QueryFigures,
    StateFigures,
    StateKind,
    make_key,
    open_store,
    read_parked_ages,
)
from semel.ledger.store import Put
from semel.monitoring import METRICS, Alert, Monitor, Monitoring, exposition, text_of
from semel.monitoring.catalogue import sample_names
from semel.monitoring.exposition import parse_address
from semel.protocol import ParkedState
from semel.runtime import SystemClock
from semel.streams import Choice
from semel.verify.servers.ports import free_port
from support.destinations import Post, lost
from support.pipeline import World


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/ledger.db"
    with closing(open_store(url)) as store:
        store.commit([], [Put(make_key("parked", "another"), "{}")])
    return url


@pytest.fixture
def opened(ledger: str) -> Iterator[Callable[..., Monitor]]:
    """Opens monitors, and closes them at the end."""
    made: list[Monitor] = []

    def begin(name: str = "pay", **settings: Any) -> Monitor:
        wanted = Monitoring(**settings)
        monitor = wanted.open(name, ["out"], ledger, lambda: True)
        assert monitor is not None
        made.append(monitor)
        return monitor

    yield begin
    for each in made:
        each.close()


def scrape(port: int) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def completed(name: str = "pay") -> MinibatchCompleted:
    return MinibatchCompleted(name, Minibatch(1, 0), {}, seconds=0.2)


def test_nothing_wanted_is_nothing_started(ledger: str) -> None:
    assert Monitoring().open("pay", ["out"], ledger, lambda: True) is None


def test_pipelines_share_an_endpoint_that_ends_with_the_last(
    opened: Callable[..., Monitor],
) -> None:
    port = free_port()
    one, two = opened("one", metrics=port), opened("two", metrics=f"127.0.0.1:{port}")
    one.observe(completed("one"))
    found = scrape(port)
    at = (("pipeline", "one"),)
    assert found["semel_minibatches_total", at] == 1
    assert found["semel_minibatch_seconds_count", at] == 1
    assert found["semel_minibatches_total", (("pipeline", "two"),)] == 0
    one.close()
    one.close()
    left = {dict(labels).get("pipeline") for _, labels in scrape(port)}
    assert left == {"two"}
    two.close()
    with pytest.raises(urllib.error.URLError):
        scrape(port)
    opened("three", metrics=port)
    assert {dict(labels).get("pipeline") for _, labels in scrape(port)} == {"three"}


def test_a_port_in_use_is_refused_with_its_address(opened: Callable[..., Monitor]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError) as refused:
            opened(metrics=port)
    assert str(refused.value) == (
        f"pipeline 'pay': metrics cannot be served at 127.0.0.1:{port}: Address already in use. "
        "Stop what listens there, or pass another port"
    )


def test_who_takes_over_waits_for_the_port_and_alerts_meanwhile(
    ledger: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The process that it took over from is frozen, and still has the port."""
    port = free_port()
    told: list[Alert] = []
    wanted = Monitoring(metrics=port, alert=told.append)
    with socket.create_server(("127.0.0.1", port)):
        monitor = wanted.open("pay", ["out"], ledger, lambda: True, waits=True)
        assert monitor is not None
        parked = {"out": Figures(parked=1)}
        monitor.observe(MinibatchCompleted("pay", Minibatch(1, 0), parked))
        until(lambda: bool(told))
    until(lambda: is_open(port))
    found = scrape(port)
    assert found["semel_minibatches_total", (("pipeline", "pay"),)] == 1
    monitor.close()
    assert not is_open(port)
    assert sum("are served as soon as" in each for each in caplog.messages) == 1


def test_who_waits_for_a_port_ends_with_the_query(ledger: str) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        monitor = Monitoring(metrics=port).open("pay", ["out"], ledger, lambda: True, waits=True)
        assert monitor is not None
        monitor.close()
    monitor.join(10)
    assert not monitor.is_alive()
    assert not is_open(port)


def is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def until(holds: Callable[[], bool]) -> None:
    for _ in range(400):
        if holds():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen")


def test_an_address_is_a_port_or_a_host_and_a_port() -> None:
    assert parse_address(9108) == ("127.0.0.1", 9108)
    assert parse_address("9108") == ("127.0.0.1", 9108)
    assert parse_address("0.0.0.0:9108") == ("0.0.0.0", 9108)
    assert parse_address("[::1]:9108") == ("::1", 9108)
    assert parse_address("driver-1.local:80") == ("driver-1.local", 80)
    for wrong in (0, 65_536, -1, True, None, "", ":", "9108:", "http://a:1", "a b:1", 1.5, b"1"):
        with pytest.raises(ConfigurationError, match="metrics must be a port such as 9108"):
            parse_address(wrong)  # type: ignore[arg-type]


def test_it_ends_with_its_query_even_if_no_minibatch_began(ledger: str) -> None:
    port, active = free_port(), [True]
    monitor = Monitoring(metrics=port).open("pay", ["out"], ledger, lambda: active[0])
    assert monitor is not None
    assert scrape(port)
    active[0] = False
    monitor.join(10)
    with pytest.raises(urllib.error.URLError):
        scrape(port)


def test_every_metric_of_the_catalogue_is_served_and_no_other(
    opened: Callable[..., Monitor], ledger: str
) -> None:
    port = free_port()
    monitor = opened(metrics=port, alert=lambda _: None)
    world = World(observer=monitor)
    world.add(Post(), window=1)
    world.client = LedgerClient(open_store(ledger), "pay")
    world.store = world.client.store  # type: ignore[assignment]
    world.start()
    monitor.knows(world.driver)
    world.out.plan(lost)
    world.minibatch(0, "a1 a2 b3")
    world.resolve("a1", "resend")
    world.driver.drain(waits=True)
    choice = Choice(1.0, 10.0, "why", 0.1, 0.01, 0.2, reachable=True)
    monitor.observe(MarkerChosen("pay", 1, choice, 0.3, 0.9, 2.0, news=True))
    state = StateFigures("dedupe", StateKind.MEMORY, 2, 10, 4096)
    query = QueryFigures(0, 3.0, 4.0, 0.5)
    monitor.observe(QueryProgressed("pay", query, (state,), {"0": 7}))
    monitor._parked.read()
    found = scrape(port)
    wanted = {each for metric in METRICS.values() for each in sample_names(metric)}
    assert {name for name, _ in found} == wanted
    assert found["semel_source_records_behind", (("pipeline", "pay"), ("source", "0"))] == 7
    labels = {name for _, pairs in found for name, _ in pairs}
    allowed = {"pipeline", "sink", "state", "where", "share", "source", "operator", "le"}
    assert labels == allowed, "a label is never an entity or an event"
    world.client.store.close()


def test_parked_events_are_read_from_the_ledger_by_state_with_their_age(
    opened: Callable[..., Monitor], ledger: str
) -> None:
    port = free_port()
    monitor = opened(metrics=port)
    world = World(observer=monitor)
    world.add(Post(), window=1)
    world.client = LedgerClient(open_store(ledger), "pay")
    world.store = world.client.store  # type: ignore[assignment]
    world.start()
    world.clock.now = SystemClock.wall() - 100
    world.out.plan(lost)
    world.minibatch(0, "a1 a2 b3")
    monitor._parked.read()
    found = scrape(port)

    def of(name: str, state: str) -> float:
        return found[name, (("pipeline", "pay"), ("sink", "out"), ("state", state))]

    assert (of("semel_parked_events", "held"), of("semel_parked_events", "waiting")) == (1, 1)
    assert (of("semel_parked_events", "rejected"), of("semel_parked_events", "damaged")) == (0, 0)
    assert 99 < of("semel_parked_oldest_seconds", "held") < 400
    assert of("semel_parked_oldest_seconds", "rejected") == 0
    world.client.store.close()


def test_a_ledger_that_cannot_be_read_reports_no_parked_events_and_not_none_of_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    missing = f"sqlite:///{tmp_path}/missing/ledger.db"
    monitor = Monitoring(metrics=port).open("pay", ["out"], missing, lambda: True)
    assert monitor is not None
    try:
        assert monitor._parked.read() is None
        assert not caplog.messages, "no minibatch began, so there may be no ledger yet"
        monitor.observe(MinibatchOpened("pay", Minibatch(1, 0), 1, False, False, False, 0.1))
        assert monitor._parked.read() is None
        assert monitor._parked.read() is None
        assert not [name for name, _ in scrape(port) if name.startswith("semel_parked")]
    finally:
        monitor.close()
    said = [each for each in caplog.messages if "could not be read for the metrics" in each]
    assert len(said) == 1


def test_a_failing_observer_is_logged_once_and_stops_nothing(
    opened: Callable[..., Monitor], caplog: pytest.LogCaptureFixture
) -> None:
    monitor = opened(metrics=free_port())
    opening: Any = MinibatchOpened("pay", Minibatch(1, 0), 1, False, False, False, "wrong")  # type: ignore[arg-type]
    monitor.observe(opening)
    monitor.observe(opening)
    assert sum("an event was not observed" in each for each in caplog.messages) == 1


def test_text_is_made_of_samples_alone(opened: Callable[..., Monitor]) -> None:
    text, kind = text_of(opened(metrics=free_port()).samples())
    assert kind.startswith("text/plain")
    assert b'semel_run_number{pipeline="pay"} 0.0' in text


def test_reading_parked_events_takes_at_most_a_twentieth_of_the_time(ledger: str) -> None:
    from semel.monitoring.parked_figures import ParkedFigures
    from support.pipeline import StillClock

    clock = StillClock()

    class Slow(ParkedFigures):
        looked = 0

        def _scanned(self) -> Any:
            self.looked += 1
            clock.move(3.0)
            return super()._scanned()

    parked = Slow("pay", ["out"], ledger, clock)
    for _ in range(600):
        parked.look()
        parked.soon()
        clock.move(1.0)
    parked.close()
    assert 600 / 63 - 1 <= parked.looked <= 660 / 60 + 1


@pytest.mark.parametrize("name", ['a"b', "a\nb", "a\\b", "a{b}c,d=e", "ä € \u202e", "# HELP x"])
def test_a_pipeline_of_any_name_is_one_label(name: str, opened: Callable[..., Monitor]) -> None:
    port = free_port()
    opened(name, metrics=port)
    assert {dict(labels).get("pipeline") for _, labels in scrape(port)} == {name}


def test_a_url_with_a_token_is_not_in_what_is_printed() -> None:
    assert "s3cret" not in repr(Monitoring(alert="https://alerts.example/?token=s3cret"))


def test_a_scraper_that_asks_for_openmetrics_gets_that(opened: Callable[..., Monitor]) -> None:
    """Prometheus itself asks for it."""
    port = free_port()
    opened('a"b\\c\nd', metrics=port)
    kind = "application/openmetrics-text; version=1.0.0"
    wanted = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": kind})
    with urllib.request.urlopen(wanted, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        found = {
            (sample.name, sample.labels.get("pipeline"))
            for family in open_metrics(answer.read().decode())  # type: ignore[no-untyped-call]
            for sample in family.samples
        }
    assert ("semel_minibatches_total", 'a"b\\c\nd') in found


def test_a_scraper_can_ask_for_some_metrics_by_name(opened: Callable[..., Monitor]) -> None:
    port = free_port()
    opened(metrics=port)
    query = "name[]=semel_minibatches_total&name[]=semel_minibatch_seconds_bucket"
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics?{query}", timeout=10) as answer:
        found = {
            sample.name
            for family in text_string_to_metric_families(answer.read().decode())
            for sample in family.samples
        }
    assert found == {"semel_minibatches_total", "semel_minibatch_seconds_bucket"}


def test_clients_that_send_nothing_hold_few_threads_and_are_closed(
    opened: Callable[..., Monitor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exposition, "CLIENT_S", 0.5)
    monkeypatch.setattr(exposition, "CLIENTS_MAX", 4)
    port = free_port()
    opened(metrics=port)
    before = threading.active_count()
    idle = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(30)]
    for _ in range(20):
        assert threading.active_count() <= before + 4
        time.sleep(0.01)
    for each in idle:
        assert each.recv(1) == b"", "it is closed, without an answer"
        each.close()
    assert scrape(port)


def test_a_client_that_goes_away_leaves_no_traceback(
    opened: Callable[..., Monitor], capfd: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    opened(metrics=port)
    for sent in (b"", b"GET /metrics HT", b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03"):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            client.sendall(sent)
            at_once = struct.pack("ii", 1, 0)  # the connection is reset, as by a health check
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
    assert scrape(port)
    time.sleep(0.1)
    assert capfd.readouterr() == ("", "")


def test_reading_parked_events_keeps_none_of_them_in_memory(tmp_path: Path) -> None:
    """A driver with very many parked events has not that many in its memory."""
    from support.console.generated_ledger import GeneratedPipeline

    with closing(open_store(f"sqlite:///{tmp_path}/ledger.db")) as store:
        made = GeneratedPipeline(store)
        made.put(made.many_parked(12_000))
        read_parked_ages(store, "charges", "bank")
        tracemalloc.start()
        found = read_parked_ages(store, "charges", "bank")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert found.counts == {ParkedState.HELD: 12_000}
    assert peak < 12_000 * 100, peak

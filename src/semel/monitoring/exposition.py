"""Prometheus: samples as its text, and the endpoint for all pipelines of a process.

Always true:
- an address that cannot be listened on is a `ConfigurationError` before any event moves;
- pipelines that name the same address share one endpoint, which ends with the last of them;
- an endpoint is read in threads of its own, and takes nothing from delivery but a lock;
- clients that send nothing, too many clients and clients that go away cost a few threads for a few
  seconds, and no line of the log.
"""

from __future__ import annotations

import re
import socket
import threading
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from semel.errors import ConfigurationError, MissingExtra
from semel.monitoring.catalogue import METRICS, Distribution, MetricKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from semel.monitoring.catalogue import Metric, Sample

    Source = Callable[[], Iterable[Sample]]

LOOPBACK = "127.0.0.1"
CLIENT_S = 5.0
"""How long a client may send nothing, or take nothing."""
CLIENTS_MAX = 16
"""How many clients are answered at once; more are turned away."""
_ADDRESS = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.-]+):)?(?P<port>\d{1,5})")

Address = tuple[str, int]


def parse_address(given: str | int) -> Address:
    """Return host and port of `127.0.0.1:9108`, or of a port. Raises `ConfigurationError`."""
    found = None
    if not isinstance(given, bool) and isinstance(given, str | int):
        found = _ADDRESS.fullmatch(str(given))
    if found is None or not 0 < int(found["port"]) < 65_536:
        raise ConfigurationError(
            f"metrics must be a port such as 9108, or an address such as '127.0.0.1:9108', got "
            f"{given!r}"
        )
    return (found["host"] or LOOPBACK).strip("[]"), int(found["port"])


def prometheus() -> Any:
    """Return the module `prometheus_client`. Raises `MissingExtra`."""
    try:
        import prometheus_client
        import prometheus_client.core
        import prometheus_client.exposition
    except ImportError:
        raise MissingExtra("metrics need prometheus-client: pip install 'semel[metrics]'") from None
    return prometheus_client


def families(samples: Iterable[Sample]) -> Iterator[Any]:
    """Return samples as families of prometheus-client, one for each metric."""
    made: dict[str, Any] = {}
    for sample in samples:
        metric, value = sample.metric, sample.value
        if metric.name not in made:
            made[metric.name] = _family(metric)
        family = made[metric.name]
        if not isinstance(value, Distribution):
            family.add_metric(sample.labels, value)
        elif metric.kind is MetricKind.SUMMARY:
            family.add_metric(sample.labels, value.count, value.total)
        else:
            family.add_metric(sample.labels, value.buckets, value.total)
    yield from made.values()


def _family(metric: Metric) -> Any:
    """Return the family of prometheus-client for a metric, without samples."""
    core = prometheus().core
    kinds = {
        MetricKind.COUNTER: core.CounterMetricFamily,
        MetricKind.GAUGE: core.GaugeMetricFamily,
        MetricKind.HISTOGRAM: core.HistogramMetricFamily,
        MetricKind.SUMMARY: core.SummaryMetricFamily,
    }
    return kinds[metric.kind](metric.name, metric.about, labels=metric.labels)


class Collector:
    """What prometheus-client asks for the figures of several sources, at each scrape."""

    def __init__(self) -> None:
        self._sources: list[Source] = []

    def add(self, source: Source) -> None:
        """Add a source of samples."""
        self._sources = [*self._sources, source]

    def remove(self, source: Source) -> int:
        """Remove a source; return how many are left."""
        self._sources = [each for each in self._sources if each != source]
        return len(self._sources)

    def describe(self) -> Iterable[Any]:
        """Return what there may be, so that a scraper can ask for some metrics by name."""
        return (_family(each) for each in METRICS.values())

    def collect(self) -> Iterator[Any]:
        """Return the families as of now."""
        yield from families(sample for source in self._sources for sample in source())


def text_of(samples: Iterable[Sample]) -> tuple[bytes, str]:
    """Return samples as the text that Prometheus reads, and its content type."""
    exposition = prometheus().exposition
    registry = prometheus().CollectorRegistry()
    collector = Collector()
    collector.add(lambda: samples)
    registry.register(collector)
    return exposition.generate_latest(registry), exposition.CONTENT_TYPE_LATEST


class _Scrape(WSGIRequestHandler):
    def setup(self) -> None:
        """Begin with the patience that one client gets."""
        super().setup()
        self.connection.settimeout(CLIENT_S)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Log nothing for each scrape."""


class _MetricsServer(ThreadingMixIn, WSGIServer):
    """A thread for each client; prometheus-client's own waits for ever, for any number of them."""

    daemon_threads = True

    def __init__(self, address: Address) -> None:
        host, port = address
        [(self.address_family, *_, (name, *_)), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        self._free = threading.BoundedSemaphore(CLIENTS_MAX)
        self._place = (str(name), port)
        super().__init__(self._place, _Scrape)

    def server_bind(self) -> None:
        """Listen without asking DNS for a name of this machine, as `HTTPServer` does."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self._place
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, or not at all."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and let the next client in."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pass over a client that went away or was too slow."""


class Endpoint:
    """One address that is listened on, for all pipelines of this process that name it."""

    def __init__(self, address: Address) -> None:
        module = prometheus()
        self._collector = Collector()
        registry = module.CollectorRegistry()
        registry.register(self._collector)
        self._server = _MetricsServer(address)
        self._server.set_app(module.make_wsgi_app(registry))
        name = f"semel-metrics-{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name=name, daemon=True)
        self._thread.start()

    def add(self, source: Source) -> None:
        """Serve the samples of one more source."""
        self._collector.add(source)

    def remove(self, source: Source) -> int:
        """Serve them no longer; return how many sources are left."""
        return self._collector.remove(source)

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


_endpoints: dict[Address, Endpoint] = {}
_lock = threading.Lock()


def serve(address: Address, source: Source, pipeline: str) -> Callable[[], None]:
    """Serve a source at an address; return what ends it. Raises `ConfigurationError`."""
    host, port = address
    with _lock:
        endpoint = _endpoints.get(address)
        if endpoint is None:
            try:
                endpoint = _endpoints[address] = Endpoint(address)
            except OSError as error:
                why = error.strerror or str(error)
                raise ConfigurationError(
                    f"pipeline {pipeline!r}: metrics cannot be served at {host}:{port}: {why}. "
                    "Stop what listens there, or pass another port"
                ) from None
        endpoint.add(source)

    def end() -> None:
        with _lock:
            if not endpoint.remove(source) and _endpoints.get(address) is endpoint:
                del _endpoints[address]
                endpoint.close()

    return end

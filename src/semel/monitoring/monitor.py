"""What observes one start of a pipeline for the outside: metrics, traces and alerts.

Always true:
- whatever is wrong with the settings is a `ConfigurationError` before any event moves; only who
  takes over waits for an address, which the process before it may still have;
- nothing here can stop or delay a minibatch: an error is logged once, and delivery goes on;
- it ends with the query, whether or not a minibatch ever began.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from semel.delivery import EventResent, MinibatchCompleted, MinibatchOpened
from semel.errors import ConfigurationError
from semel.monitoring import catalogue, telemetry
from semel.monitoring.alerts import Alert, Alerts, require_target
from semel.monitoring.catalogue import Sample
from semel.monitoring.exposition import parse_address, prometheus, serve
from semel.monitoring.parked_figures import ParkedFigures
from semel.monitoring.pipeline_figures import PipelineFigures
from semel.runtime import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from semel.delivery import DeliveryEvent, Driver, Observer
    from semel.monitoring.exposition import Address
    from semel.runtime import Clock

LOOK_S = 0.5

log = logging.getLogger("semel")


@dataclass(frozen=True)
class Monitoring:
    """What is wanted, as it travels to the process of the driver.

    Attributes:
        metrics: where Prometheus reads: a port of loopback, or `host:port`.
        otel: whether traces and metrics go to the SDK of OpenTelemetry that the process has.
        alert: a URL or a function that learns of parked events.
    """

    metrics: str | int | None = None
    otel: bool = False
    alert: str | Callable[[Alert], object] | None = field(default=None, repr=False)

    def check(self, pipeline: str) -> None:
        """Raise `ConfigurationError` for a setting that cannot work."""
        if self.metrics is not None:
            parse_address(self.metrics)
            prometheus()
        require_target(self.alert, pipeline)
        if self.otel:
            telemetry.require_api()

    def open(
        self,
        pipeline: str,
        sinks: Sequence[str],
        ledger: str,
        active: Callable[[], bool],
        clock: Clock | None = None,
        *,
        waits: bool = False,
    ) -> Monitor | None:
        """Begin to observe; None if nothing is wanted. If it `waits`, an address that is in use is
        listened on as soon as it is free. Raises `ConfigurationError`.
        """
        if self == Monitoring():
            return None
        self.check(pipeline)
        made = Monitor(self, pipeline, sinks, ledger, active, clock or SystemClock(), waits=waits)
        made.start()
        return made


class Monitor(threading.Thread):
    """Observes one start of a pipeline until it is closed, or `active()` is false."""

    def __init__(
        self,
        wanted: Monitoring,
        pipeline: str,
        sinks: Sequence[str],
        ledger: str,
        active: Callable[[], bool],
        clock: Clock,
        *,
        waits: bool,
    ) -> None:
        super().__init__(name=f"semel-monitor-{pipeline}", daemon=True)
        self._pipeline = pipeline
        self._active = active
        self._stopped = threading.Event()
        self._closing = threading.Lock()
        self._closed = self._logged = False
        self._figures = PipelineFigures(pipeline, sinks, clock)
        self._parked = ParkedFigures(pipeline, sinks, ledger, clock)
        self._address: Address | None = None
        """What is still to be listened on."""
        self._alerts: Alerts | None = None
        self._ends: list[Callable[[], None]] = []
        observers: list[Observer] = [self._figures]
        if wanted.metrics is not None:
            self._address = parse_address(wanted.metrics)
            try:
                self._listen()
            except ConfigurationError as error:
                if not waits:
                    raise
                log.warning("%s; they are served as soon as it is free", error)
        if wanted.otel:
            traces = telemetry.Traces(clock)
            observers.append(traces)
            self._ends += [traces.close, telemetry.measure(self.samples)]
        if wanted.alert is not None:
            self._alerts = Alerts(pipeline, wanted.alert, self._parked, clock)
            observers.append(self._alerts)
            self._alerts.start()
            self._ends.append(self._alerts.close)
        self._ends.append(self._parked.close)
        self._observers = tuple(observers)
        self._reads = wanted.metrics is not None or wanted.otel

    def _listen(self) -> None:
        """Serve the metrics. Raises `ConfigurationError` if that is not possible now."""
        with self._closing:
            if self._address is None or self._closed:
                return
            self._ends.append(serve(self._address, self.samples, self._pipeline))
            log.info("pipeline %r: metrics at http://%s:%d/metrics", self._pipeline, *self._address)
            self._address = None

    def knows(self, driver: Driver) -> None:
        """Learn the driver, once there is one."""
        self._figures.driver_commits = lambda: driver.client.used.figures

    def observe(self, event: DeliveryEvent) -> None:
        """Pass an event on. Errors are logged once, and never raised."""
        for each in self._observers:
            try:
                each.observe(event)
            except Exception:
                if not self._logged:
                    log.exception("pipeline %r: an event was not observed", self._pipeline)
                self._logged = True
        self._parked.expected |= isinstance(event, MinibatchOpened)
        if isinstance(event, EventResent) or (
            isinstance(event, MinibatchCompleted)
            and any(each.parked for each in event.figures.values())
        ):
            self._parked.soon()

    def samples(self) -> Iterator[Sample]:
        """Return all figures as of now."""
        yield from self._figures.samples()
        yield from self._parked.samples()
        if self._alerts is not None:
            at = (self._pipeline,)
            yield Sample(catalogue.ALERTS_SENT, at, self._alerts.sent)
            yield Sample(catalogue.ALERTS_DROPPED, at, self._alerts.dropped)

    def run(self) -> None:
        """Read parked events now and then, until the query ends."""
        while not self._stopped.wait(LOOK_S) and self._active():
            with suppress(ConfigurationError):
                self._listen()
            if self._reads:
                self._parked.look()
        self.close()

    def close(self) -> None:
        """End the endpoint, the traces and the alerts; may be called again."""
        self._stopped.set()
        with self._closing:
            if self._closed:
                return
            self._closed = True
            for end in self._ends:
                with suppress(Exception):
                    end()

"""OpenTelemetry: a trace for each minibatch, and the metrics, for the SDK of the application.

Always true:
- only the API of OpenTelemetry is used; without an SDK nothing is recorded, and a minibatch costs
  one call that does nothing;
- a span of a partition is made on the driver, of the times that its task reported: by the clock of
  the task's machine, which may differ.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from semel.delivery import MinibatchCompleted, MinibatchOpened
from semel.errors import MissingExtra
from semel.monitoring.catalogue import METRICS, Distribution, MetricKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from semel.delivery import DeliveryEvent, PartitionFigures
    from semel.monitoring.catalogue import Sample
    from semel.runtime import Clock

NAME = "semel"


def _api() -> Any:
    try:
        from opentelemetry import metrics, trace
    except ImportError:
        raise MissingExtra(
            "otel=True needs the API of OpenTelemetry: pip install 'semel[otel]'"
        ) from None
    return trace, metrics


def require_api() -> None:
    """Raise `MissingExtra` if the API of OpenTelemetry is not installed."""
    _api()


class Traces:
    """Makes a trace of each minibatch of one start of a pipeline."""

    def __init__(self, clock: Clock) -> None:
        self._trace, _ = _api()
        self._clock = clock
        self._tracer = self._trace.get_tracer(NAME)
        self._lock = threading.Lock()
        self._open: Any = None

    def observe(self, event: DeliveryEvent) -> None:
        """Begin a span where a minibatch is opened, and end it where it is complete."""
        with self._lock:
            if isinstance(event, MinibatchOpened):
                self._abandon("another minibatch was opened before this one was complete")
                self._open = self._tracer.start_span(
                    "semel.minibatch",
                    start_time=_nanoseconds(self._clock.wall() - event.seconds),
                    attributes={
                        "semel.pipeline": event.pipeline,
                        "semel.run": event.run,
                        "semel.minibatch": str(event.minibatch),
                    },
                )
            elif isinstance(event, MinibatchCompleted) and self._open is not None:
                span, self._open = self._open, None
                if span.is_recording():
                    self._complete(span, event)
                span.end(end_time=_nanoseconds(self._clock.wall()))

    def _complete(self, span: Any, event: MinibatchCompleted) -> None:
        """Give the span its figures, and one more span for each partition and sink."""
        total: dict[str, int] = {"skipped": event.skipped}
        for figures in event.figures.values():
            for name in _COUNTS:
                total[name] = total.get(name, 0) + getattr(figures, name)
        span.set_attributes({f"semel.{name}": count for name, count in total.items()})
        span.set_attribute("semel.counted_only", event.again)
        within = self._trace.set_span_in_context(span)
        for each in event.partitions:
            part = self._tracer.start_span(
                "semel.partition",
                context=within,
                start_time=_nanoseconds(each.began),
                attributes=_attributes(event.pipeline, each),
            )
            part.end(end_time=_nanoseconds(max(each.began, each.ended)))

    def close(self) -> None:
        """End the span of a minibatch that is still open: it was not completed."""
        with self._lock:
            self._abandon("the query ended before the minibatch was complete")

    def _abandon(self, why: str) -> None:
        if self._open is not None:
            status = self._trace.Status(self._trace.StatusCode.ERROR, why)
            self._open.set_status(status)
            self._open.end(end_time=_nanoseconds(self._clock.wall()))
            self._open = None


_COUNTS = ("delivered", "suppressed", "parked", "doubted", "dropped", "skipped", "bytes")


def _attributes(pipeline: str, part: PartitionFigures) -> dict[str, str | int]:
    counts = {f"semel.{name}": getattr(part.figures, name) for name in _COUNTS}
    return {
        "semel.pipeline": pipeline,
        "semel.sink": part.sink,
        "semel.partition": part.partition,
        "semel.attempt": str(part.attempt),
        **counts,
    }


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


# -- metrics

_sources: list[Callable[[], Iterable[Sample]]] = []
_registered = threading.Lock()
_instruments: list[Any] = []
"""Instruments cannot be removed: they are made once in a process, and read what pipelines run."""


def measure(source: Callable[[], Iterable[Sample]]) -> Callable[[], None]:
    """Give the samples of a source to OpenTelemetry; return what ends that."""
    _, metrics = _api()
    with _registered:
        _sources.append(source)
        if not _instruments:
            _instruments.extend(_make(metrics))

    def end() -> None:
        with _registered:
            if source in _sources:
                _sources.remove(source)

    return end


def instrument_name(metric: str) -> str:
    """Return how OpenTelemetry has a metric: `semel.events.delivered`."""
    return metric.removesuffix("_total").replace("_", ".")


def _make(metrics: Any) -> list[Any]:
    """Create an instrument for each metric; of a distribution, its count and its sum."""
    meter = metrics.get_meter(NAME)
    made = []
    for name, metric in METRICS.items():
        shown = instrument_name(name)
        unit = "s" if name.endswith("_seconds") else "By" if "bytes" in name else "1"
        if metric.kind is MetricKind.GAUGE:
            make = meter.create_observable_gauge
            made.append(make(shown, [_reader(metrics, name)], unit, metric.about))
            continue
        make = meter.create_observable_counter
        if metric.kind is MetricKind.COUNTER:
            made.append(make(shown, [_reader(metrics, name)], unit, metric.about))
            continue
        for part, each in (("count", "1"), ("total", unit)):
            called = f"{shown}.{'count' if part == 'count' else 'sum'}"
            made.append(make(called, [_reader(metrics, name, part)], each, metric.about))
    return made


def _reader(metrics: Any, name: str, part: str = "") -> Callable[[Any], Iterable[Any]]:
    """Return what OpenTelemetry calls for the values of one instrument."""

    def read(_: Any) -> Iterable[Any]:
        for source in tuple(_sources):
            for sample in source():
                if sample.metric.name == name:
                    value = sample.value
                    if isinstance(value, Distribution):
                        value = getattr(value, part)
                    labels = dict(zip(sample.metric.labels, sample.labels, strict=True))
                    yield metrics.Observation(value, labels)

    return read

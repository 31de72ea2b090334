"""Every metric that semel has, by name: its kind, its labels and what it counts.

Always true:
- a label has few values: pipelines, sinks, states, sources; never an entity, an event or a text;
- a counter begins at 0 with each start of a pipeline, and only grows;
- the dashboard, the alert rules and the docs have these names; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from semel.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LabelValues = tuple[str, ...]


class MetricKind(StrEnum):
    """How a metric behaves, as Prometheus names it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; `labels` are in the order of the values of its samples."""

    name: str
    kind: MetricKind
    about: str
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Distribution:
    """The value of a histogram or a summary.

    Attributes:
        buckets: how many values were at most each bound, in the order of the bounds; the last is
            without a bound. Empty for a summary.
    """

    count: int
    total: float
    buckets: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric."""

    metric: Metric
    labels: LabelValues
    value: float | Distribution


_PIPELINE = ("pipeline",)
_SINK = ("pipeline", "sink")
_STATE = ("pipeline", "sink", "state")
_WHERE = ("pipeline", "where")


def _counter(name: str, about: str, labels: tuple[str, ...]) -> Metric:
    return Metric(name, MetricKind.COUNTER, about, labels)


def _gauge(name: str, about: str, labels: tuple[str, ...]) -> Metric:
    return Metric(name, MetricKind.GAUGE, about, labels)


DELIVERED = _counter(
    "semel_events_delivered_total",
    "Delivered events of the minibatches that this start completed, each once: also those that an "
    "earlier attempt delivered, and parked events that were resent and arrived.",
    _SINK,
)
SUPPRESSED = _counter(
    "semel_events_suppressed_total",
    "Events that were not sent again, because an earlier attempt delivered them.",
    _SINK,
)
PARKED = _counter(
    "semel_events_parked_total", "Events that were parked, those in doubt included.", _SINK
)
IN_DOUBT = _counter(
    "semel_events_in_doubt_total", "Events that were parked because they may have arrived.", _SINK
)
DROPPED = _counter(
    "semel_events_dropped_total", "Events in doubt that on_doubt='skip' dropped.", _SINK
)
RESENT = _counter(
    "semel_events_resent_total",
    "Resends of parked events that have an outcome, by the state of the event then; without those "
    "of SEQUENCED sinks, which their tasks send.",
    _STATE,
)
SKIPPED = _counter(
    "semel_events_skipped_total",
    "Events that were not sent, because they were handled before a checkpoint was lost.",
    _PIPELINE,
)
BYTES = _counter(
    "semel_delivered_bytes_total", "Size of the rows of which events were delivered.", _SINK
)
MINIBATCHES = _counter(
    "semel_minibatches_total", "Minibatches that this start completed.", _PIPELINE
)
MINIBATCH_SECONDS = Metric(
    "semel_minibatch_seconds",
    MetricKind.HISTOGRAM,
    "From opening a minibatch until it was complete and concluded.",
    _PIPELINE,
)
OPEN_SECONDS = _gauge(
    "semel_minibatch_open_seconds", "How long the open minibatch is open; 0 if none is.", _PIPELINE
)
COMMITS = Metric(
    "semel_ledger_commit_seconds",
    MetricKind.SUMMARY,
    "Commits to the ledger and how long they took, with repetitions: of the driver, and of the "
    "tasks that reported.",
    _WHERE,
)
LEDGER_ERRORS = _counter(
    "semel_ledger_errors_total", "How often the ledger did not answer a read or a commit.", _WHERE
)
HEARTBEAT_AGE = _gauge(
    "semel_heartbeat_age_seconds",
    "Since the run last recorded in the ledger that it is alive; it does so every 3 seconds.",
    _PIPELINE,
)
RUN = _gauge("semel_run_number", "The number of the run; 0 before its first minibatch.", _PIPELINE)
PARKED_NOW = _gauge(
    "semel_parked_events", "Parked events of the ledger that are not final, by state.", _STATE
)
PARKED_OLDEST = _gauge(
    "semel_parked_oldest_seconds", "Since the oldest of them is in its state.", _STATE
)
PARKED_READ_AGE = _gauge(
    "semel_parked_read_age_seconds",
    "Since the parked events were read from the ledger: the two figures above are that old.",
    _PIPELINE,
)
LATENCY = _gauge(
    "semel_latency_seconds",
    "Estimate of the latency that this share of the recent events had at most; paced pipelines.",
    ("pipeline", "share"),
)
LATENCY_REQUIRED = _gauge(
    "semel_latency_required_seconds", "The latency that is required; paced pipelines.", _PIPELINE
)
INTERVAL = _gauge(
    "semel_marker_interval_seconds", "The interval that the marker clock chose last.", _PIPELINE
)
BEHIND = _gauge(
    "semel_source_records_behind",
    "Records of a source that no micro-batch had taken when the newest one was planned.",
    ("pipeline", "source"),
)
INPUT_RATE = _gauge(
    "semel_query_input_rows_per_second",
    "Rows that arrived per second, as Spark reports.",
    _PIPELINE,
)
QUERY_SECONDS = _gauge(
    "semel_query_batch_seconds", "The newest micro-batch as a whole, as Spark reports.", _PIPELINE
)
STATE_ROWS = _gauge(
    "semel_state_rows", "Rows in the state of a stateful operator.", ("pipeline", "operator")
)
STATE_BYTES = _gauge(
    "semel_state_memory_bytes",
    "Memory of the state of a stateful operator.",
    ("pipeline", "operator"),
)
ALERTS_SENT = _counter("semel_alerts_sent_total", "Alerts that alert= took.", _PIPELINE)
ALERTS_DROPPED = _counter(
    "semel_alerts_dropped_total", "Alerts that alert= did not take in time.", _PIPELINE
)

METRICS: Mapping[str, Metric] = {
    each.name: each
    for each in (
        DELIVERED,
        SUPPRESSED,
        PARKED,
        IN_DOUBT,
        DROPPED,
        RESENT,
        SKIPPED,
        BYTES,
        MINIBATCHES,
        MINIBATCH_SECONDS,
        OPEN_SECONDS,
        COMMITS,
        LEDGER_ERRORS,
        HEARTBEAT_AGE,
        RUN,
        PARKED_NOW,
        PARKED_OLDEST,
        PARKED_READ_AGE,
        LATENCY,
        LATENCY_REQUIRED,
        INTERVAL,
        BEHIND,
        INPUT_RATE,
        QUERY_SECONDS,
        STATE_ROWS,
        STATE_BYTES,
        ALERTS_SENT,
        ALERTS_DROPPED,
    )
}


def sample_names(metric: Metric) -> Sequence[str]:
    """Return the names under which Prometheus has the samples of a metric."""
    if metric.kind is MetricKind.HISTOGRAM:
        return [f"{metric.name}_{each}" for each in ("bucket", "sum", "count")]
    if metric.kind is MetricKind.SUMMARY:
        return [f"{metric.name}_{each}" for each in ("sum", "count")]
    return [metric.name]


FILES = Path(__file__).with_name("files")
"""The dashboard and the alert rules, as they are written for a user."""


def write_files(folder: Path) -> list[Path]:
    """Write the dashboard and the alert rules into a folder; return where they are.

    Raises `ConfigurationError` if one of them exists there, and writes nothing then.
    """
    targets = {each: folder / each.name for each in sorted(FILES.iterdir())}
    for target in targets.values():
        if target.exists():
            raise ConfigurationError(f"{target} exists; remove it, or write into another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for each, target in targets.items():
        target.write_bytes(each.read_bytes())
    return list(targets.values())

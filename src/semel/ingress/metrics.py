"""Figures of an ingress, as samples that `monitoring` writes for Prometheus.

They are counted here, in plain fields, by the thread of the event loop: a request takes no lock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from semel.monitoring import Distribution, Metric, MetricKind, Sample, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


def _metric(name: str, kind: MetricKind, about: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(f"semel_ingest_{name}", kind, about, labels)


_REQUESTS = _metric(
    "requests_total", MetricKind.COUNTER, "Requests answered, by status.", ("status",)
)
_EVENTS = _metric("events_total", MetricKind.COUNTER, "Events acknowledged.")
_REPEATS = _metric(
    "repeats_total", MetricKind.COUNTER, "Acknowledged events that were stored before."
)
_FAILED = _metric("commits_failed_total", MetricKind.COUNTER, "Commits that failed.")
_COMMITS = _metric("commit_seconds", MetricKind.HISTOGRAM, "Duration of a group commit.")
_WAITING = _metric("queue_requests", MetricKind.GAUGE, "Requests that wait for their commit.")
_HELD = _metric("held_bytes", MetricKind.GAUGE, "Bytes of bodies that are held.")


@dataclass(slots=True)
class Metrics:
    """What an ingress counts. Everything is counted by the thread of the event loop."""

    requests: Counter[int] = field(default_factory=Counter)
    events: int = 0
    repeats: int = 0
    commits: int = 0
    failed_commits: int = 0
    commit_s: float = 0.0
    _buckets: list[int] = field(default_factory=lambda: [0] * (len(_BOUNDS_S) + 1))

    def stored(self, events: int, repeats: int) -> None:
        """Count events that are durable; repeats are among them."""
        self.events += events
        self.repeats += repeats

    def committed(self, seconds: float, *, failed: bool) -> None:
        """Count a commit of a group."""
        self.commits += 1
        self.failed_commits += failed
        self.commit_s += seconds
        self._buckets[bisect_left(_BOUNDS_S, seconds)] += 1

    def text(self, waiting_requests: int, held_bytes: int) -> tuple[bytes, str]:
        """Return all figures as Prometheus reads them, and the content type of that."""
        return text_of(self._samples(waiting_requests, held_bytes))

    def _samples(self, waiting_requests: int, held_bytes: int) -> Iterator[Sample]:
        for status, count in sorted(self.requests.items()):
            yield Sample(_REQUESTS, (str(status),), count)
        yield Sample(_EVENTS, (), self.events)
        yield Sample(_REPEATS, (), self.repeats)
        yield Sample(_FAILED, (), self.failed_commits)
        bounds = [*map(str, _BOUNDS_S), "+Inf"]
        buckets = tuple(zip(bounds, accumulate(self._buckets), strict=True))
        yield Sample(_COMMITS, (), Distribution(self.commits, self.commit_s, buckets))
        yield Sample(_WAITING, (), waiting_requests)
        yield Sample(_HELD, (), held_bytes)

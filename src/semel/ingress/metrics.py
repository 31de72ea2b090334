"""Figures of an ingress in the text format of Prometheus.

A small writer of our own: the client library of Prometheus takes a lock for each figure of each
request, and these are few figures, each counted by one thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


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

    def text(self, waiting_requests: int, held_bytes: int) -> str:
        """Return all figures as Prometheus reads them."""
        return "\n".join([*self._lines(waiting_requests, held_bytes), ""])

    def _lines(self, waiting_requests: int, held_bytes: int) -> Iterator[str]:
        yield from _head("requests_total", "counter", "Requests answered, by status.")
        for status, count in sorted(self.requests.items()):
            yield f'semel_ingest_requests_total{{status="{status}"}} {count}'
        yield from _one("events_total", "counter", "Events acknowledged.", self.events)
        yield from _one(
            "repeats_total", "counter", "Acknowledged events that were stored before.", self.repeats
        )
        yield from _one(
            "commits_failed_total", "counter", "Commits that failed.", self.failed_commits
        )
        yield from _head("commit_seconds", "histogram", "Duration of a group commit.")
        total = 0
        for bound, count in zip((*_BOUNDS_S, "+Inf"), self._buckets, strict=True):
            total += count
            yield f'semel_ingest_commit_seconds_bucket{{le="{bound}"}} {total}'
        yield f"semel_ingest_commit_seconds_sum {self.commit_s}"
        yield f"semel_ingest_commit_seconds_count {self.commits}"
        yield from _one(
            "queue_requests", "gauge", "Requests that wait for their commit.", waiting_requests
        )
        yield from _one("held_bytes", "gauge", "Bytes of bodies that are held.", held_bytes)


def _head(name: str, kind: str, what: str) -> Iterator[str]:
    yield f"# HELP semel_ingest_{name} {what}"
    yield f"# TYPE semel_ingest_{name} {kind}"


def _one(name: str, kind: str, what: str, value: float) -> Iterator[str]:
    yield from _head(name, kind, what)
    yield f"semel_ingest_{name} {value}"

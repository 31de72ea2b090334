"""A Spark stage: the tasks of a minibatch, retried until each has a report or the query fails.

Always true:
- a paused attempt is replaced, and is a zombie from then on;
- of two attempts that end, the driver gets one report, not necessarily that of the later one;
- if the input was cut short, no report reaches the driver;
- a task that ends because its run is asked to stop ends no other one, and is not tried again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from semel.errors import StopRequested
from semel.verify.simulator.cluster import FAILURES_MAX, RETRIED, QueryStopped

if TYPE_CHECKING:
    from random import Random

    from semel.ledger import OpenMinibatch, Report
    from semel.verify.simulator.cluster import Cluster, Lead
    from semel.verify.simulator.scheduler import Job

Ranges = dict[str, tuple[int, int]]


@dataclass(eq=False)
class Stage:
    """The attempts at the partitions of one minibatch."""

    cluster: Cluster
    lead: Lead
    opening: OpenMinibatch
    ranges: Ranges
    chance: Random | None = None
    speculates: float = 0.0
    reports: dict[str, list[Report]] = field(default_factory=dict)
    failures: int = 0

    def __post_init__(self) -> None:
        self._live: list[tuple[str, Job]] = []
        self._ended: set[str] = set()

    def run(self) -> list[Report]:
        """Try until every partition has a report, or has ended because the run is asked to stop.
        Raises `QueryStopped` or `PipelineBroken`.
        """
        for partition in self.ranges:
            self._launch(partition)
            if self._happens(self.speculates):
                self._launch(partition)
        try:
            while self.reports.keys() | self._ended < self.ranges.keys():
                self.cluster.hub.run(self._any_news)
                for partition, job in list(self._live):
                    if job.done or job.paused:
                        self._live.remove((partition, job))
                        self._look_at(partition, job)
        finally:
            self._leave()
        if len(self.reports) < len(self.ranges):
            raise QueryStopped(None)
        return [report for reports in self.reports.values() for report in reports]

    def _launch(self, partition: str) -> None:
        job = self.cluster.task(self.lead, self.opening, partition, self.ranges[partition])
        self._live.append((partition, job))

    def _any_news(self) -> bool:
        return any(job.done or job.paused for _, job in self._live)

    def _look_at(self, partition: str, job: Job) -> None:
        if job.done and job.error is None:
            self._take(partition, job)
            return
        if isinstance(job.error, StopRequested):
            if not self._tried(partition):
                self._ended.add(partition)
            return
        if job.done and not job.crashed:
            self._failed(job)
        if partition not in self.reports and not self._tried(partition):
            self._launch(partition)

    def _take(self, partition: str, job: Job) -> None:
        """Take the report of a task that ended, unless its input was cut short."""
        machine = next(each for each in self.cluster.machines if each.actor is job.actor)
        if machine.wire.cut:
            raise QueryStopped(None)
        if partition in self.reports and not self._happens(0.5):
            return
        if not self._tried(partition) or not self._happens(0.3):
            self.reports[partition] = job.result

    def _failed(self, job: Job) -> None:
        """Count a failed task, which is tried again unless that cannot help."""
        error = job.error
        if not isinstance(error, RETRIED):
            raise self.cluster.judged(job)
        self.failures += 1
        self.cluster.story.note(
            self.cluster.hub.now, job.title, ("failed:", type(error).__name__), str(error)[:120]
        )
        if self.failures >= FAILURES_MAX:
            raise QueryStopped(error)

    def _tried(self, partition: str) -> bool:
        return any(name == partition for name, _ in self._live)

    def _leave(self) -> None:
        """Kill the attempts that still run, or let them continue as zombies."""
        for _, job in self._live:
            if not job.done and not self._happens(0.5):
                self.cluster.hub.kill(job.actor)

    def _happens(self, probability: float) -> bool:
        return self.chance is not None and self.chance.random() < probability

"""The observer: the one seam for figures, which driver and tasks notify; log lines come from it.

Always true:
- an event is a frozen value with counts, bytes and seconds, never rows;
- a task makes at most a few events for each step of a strategy (a chunk, or the chunks of one
  recorded span), and none for a single row;
- an observer changes nothing: it must not raise, and nothing that is delivered depends on it.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from semel.delivery.log_lines import (
    log_chosen,
    log_minibatch,
    log_not_sent,
    log_opened,
    log_resent,
)
from semel.ledger import (
    CommitFigures,
    MinibatchFigures,
    RateFigures,
    RunFigures,
    SnapshotFigures,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from semel.events import Attempt, EventID, Minibatch
    from semel.ledger import QueryFigures, Report, StateFigures
    from semel.protocol import ParkedState
    from semel.runtime import Clock
    from semel.streams import Choice

log = logging.getLogger("semel")


@dataclass(frozen=True, slots=True)
class Figures:
    """What was done with events, and what was found done; `Report` explains each of them."""

    delivered: int = 0
    suppressed: int = 0
    parked: int = 0
    doubted: int = 0
    dropped: int = 0
    parked_before: int = 0
    dropped_before: int = 0
    skipped: int = 0
    bytes: int = 0
    seconds: float = 0.0
    repeats: int = 0

    def __add__(self, other: Figures) -> Figures:
        return Figures(
            self.delivered + other.delivered,
            self.suppressed + other.suppressed,
            self.parked + other.parked,
            self.doubted + other.doubted,
            self.dropped + other.dropped,
            self.parked_before + other.parked_before,
            self.dropped_before + other.dropped_before,
            self.skipped + other.skipped,
            self.bytes + other.bytes,
            self.seconds + other.seconds,
            self.repeats + other.repeats,
        )

    @classmethod
    def of(cls, report: Report) -> Figures:
        """Return the figures of a report."""
        return cls(
            report.delivered,
            report.suppressed,
            report.parked,
            report.doubted,
            report.dropped,
            report.parked_before,
            report.dropped_before,
            report.skipped,
            report.bytes,
            report.seconds,
            report.repeats,
        )

    @property
    def before(self) -> int:
        """How many events an earlier attempt had delivered, parked or dropped."""
        return self.suppressed + self.parked_before + self.dropped_before

    @property
    def any_not_sent(self) -> bool:
        """Whether there are events that were not sent, now or by this attempt."""
        return bool(self.before or self.parked or self.dropped or self.skipped or self.repeats)


NO_FIGURES = Figures()


@dataclass(frozen=True, slots=True)
class PartitionFigures:
    """What the attempt that Spark kept did with one partition for one sink.

    Attributes:
        began: when it began, by the clock of its machine.
        ended: when it had delivered the partition.
    """

    sink: str
    partition: str
    attempt: Attempt
    began: float
    ended: float
    figures: Figures

    @classmethod
    def of(cls, report: Report) -> PartitionFigures:
        """Return the figures of a report."""
        figures = Figures.of(report)
        return cls(
            report.sink, report.partition, report.attempt, report.began, report.ended, figures
        )


# -- events of a task


@dataclass(frozen=True, slots=True)
class PartitionEvent:
    """What an attempt did with one partition for one sink. Made on an executor; the sums of all
    attempts that Spark kept are in `MinibatchCompleted`.
    """

    pipeline: str
    minibatch: Minibatch
    sink: str
    partition: str


@dataclass(frozen=True, slots=True)
class ChunkDelivered(PartitionEvent):
    """One step of a strategy delivered events: a chunk, or the chunks of one recorded span.

    Attributes:
        count: the events that were delivered.
        bytes: the size of the rows that the step took.
        seconds: how long the step took, with its ledger writes.
    """

    count: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class EventsSkipped(PartitionEvent):
    """Events were handled before a checkpoint was lost, and are not sent."""

    count: int


@dataclass(frozen=True, slots=True)
class RepeatsDropped(PartitionEvent):
    """Events have ids that came in an earlier minibatch, and are not sent (`drop_repeats`)."""

    count: int


@dataclass(frozen=True, slots=True)
class EventsSuppressed(PartitionEvent):
    """Events are not sent again, because an earlier attempt delivered, parked or dropped them."""

    delivered: int
    parked: int
    dropped: int


@dataclass(frozen=True, slots=True)
class EventsSetAside(PartitionEvent):
    """Events were parked, `doubted` of them in doubt, or dropped by policy `skip`."""

    parked: int
    doubted: int
    dropped: int


@dataclass(frozen=True, slots=True)
class FirstFailure:
    """A call failed with an error of a kind that this run had not met in this process."""

    place: str
    kind: str
    trace: str


# -- events of the driver


@dataclass(frozen=True, slots=True)
class MinibatchOpened:
    """The driver opened a minibatch.

    Attributes:
        judged: whether its generation began because a person judged the minibatch before it.
        settled: whether a person accepted it as recorded, so that no task runs.
        seconds: how long it took, with draining and with closing an older generation.
    """

    pipeline: str
    minibatch: Minibatch
    run: int
    new_generation: bool
    judged: bool
    settled: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class MinibatchCompleted:
    """The ledger has the minibatch complete, and it is concluded at the sinks.

    Attributes:
        figures: by sink, of all partitions.
        skipped: events of partitions that reported nothing, because nothing in them was new.
        judged: whether its generation began because a person judged the minibatch before it.
        seconds: since it was opened.
        snapshots: what the tasks read and wrote of the state in the ledger.
        run: the run that completed it.
        again: whether it was complete before, and its events were only counted.
        partitions: the same figures by partition, with the time that each took.
        commits: what the tasks asked of the ledger.
    """

    pipeline: str
    minibatch: Minibatch
    figures: Mapping[str, Figures]
    skipped: int = 0
    judged: bool = False
    seconds: float = 0.0
    snapshots: SnapshotFigures = field(default_factory=SnapshotFigures)
    run: int = 0
    again: bool = False
    partitions: tuple[PartitionFigures, ...] = ()
    commits: CommitFigures = field(default_factory=CommitFigures)


@dataclass(frozen=True, slots=True)
class HeartbeatWritten:
    """The run recorded that it is alive, or that it has ended."""

    pipeline: str
    run: int
    ended: bool


@dataclass(frozen=True, slots=True)
class QueryProgressed:
    """Spark reported what a micro-batch of the query did, and what became of its state. Seen with
    the heartbeat, some seconds later; not on Spark Connect.

    Attributes:
        state: of each stateful operator, of this micro-batch alone.
        behind: for each source whose offsets are numbers (Kafka), how many records it had when the
            micro-batch was planned that no micro-batch had taken.
    """

    pipeline: str
    query: QueryFigures
    state: tuple[StateFigures, ...]
    behind: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EventResent:
    """A parked event was sent. SEQUENCED sinks resend in a task, others on the driver.

    Attributes:
        number: how often it was tried since it was parked.
        by: who asked for it; None if it was its turn.
        outcome: what became of it, in words.
        state: how it is recorded now; None if it is still being sent.
    """

    pipeline: str
    sink: str
    entity: str
    event: EventID
    number: int
    by: str | None
    outcome: str
    state: ParkedState | None = None


@dataclass(frozen=True, slots=True)
class StageStopped:
    """A second stage did not get a concluded minibatch: a person has to decide it."""

    place: str
    state: str
    why: str


@dataclass(frozen=True, slots=True)
class MarkerChosen:
    """The marker clock of a paced pipeline chose the next interval.

    Attributes:
        number: of the marker that the interval begins with.
        p50_s: estimate of the latency that half of the recent events had at most.
        p99_s: the same for 99 of 100.
        latency_s: the latency that is required.
        news: whether it differs from the choice before by more than a little.
    """

    pipeline: str
    number: int
    choice: Choice
    p50_s: float | None
    p99_s: float | None
    latency_s: float
    news: bool


DeliveryEvent = (
    PartitionEvent
    | FirstFailure
    | MinibatchOpened
    | MinibatchCompleted
    | HeartbeatWritten
    | QueryProgressed
    | EventResent
    | StageStopped
    | MarkerChosen
)


class Observer(Protocol):
    """Is notified of what driver and tasks do."""

    def observe(self, event: DeliveryEvent) -> None:
        """Take one event, at once: delivery waits for it. Must not raise."""


class Observers:
    """Several observers, notified in their order. One that fails stops neither the others nor the
    delivery: its error is logged.
    """

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = tuple(observers)

    def observe(self, event: DeliveryEvent) -> None:
        """Pass the event to each of them."""
        for observer in self._observers:
            try:
                observer.observe(event)
            except Exception as error:  # noqa: BLE001 - it only looks on
                kind, what = type(observer).__name__, f"{type(error).__name__}: {error}"
                log.warning("observer %s failed at %s: %s", kind, type(event).__name__, what)


class LogObserver:
    """Writes log lines, to the logger `semel`."""

    def observe(self, event: DeliveryEvent) -> None:
        """Log what a person may have to know; most events are not logged."""
        match event:
            case MinibatchOpened() if event.new_generation or event.settled:
                log_opened(event)
            case MinibatchCompleted():
                self._completed(event)
            case EventResent():
                log_resent(event)
            case FirstFailure():
                log.warning(
                    "%s: the first %s of this run in this process (others are not logged):\n%s",
                    event.place,
                    event.kind,
                    event.trace,
                )
            case StageStopped():
                log.warning(
                    "%s: %s (%s); `semel parked ls` shows it", event.place, event.state, event.why
                )
            case MarkerChosen() if event.news:
                log_chosen(event)
            case _:
                return

    def _completed(self, event: MinibatchCompleted) -> None:
        """Log one line for the minibatch, and what was not sent."""
        if log.isEnabledFor(logging.INFO):
            log_minibatch(event)
        figures = sum(event.figures.values(), Figures(skipped=event.skipped))
        if figures.any_not_sent:
            log_not_sent(event, figures)


NEWEST = 20
"""Of how many minibatches the rates are: enough to see past one that was slow."""

KEPT = 60
"""Of how many minibatches the figures are kept one by one: some kilobytes in each heartbeat."""


class RunRecorder:
    """Keeps the figures of a run for `semel status`. The driver notifies it from several threads.

    Attributes:
        unknown: why the figures of Spark's query are not known, until there are some.
    """

    def __init__(self, clock: Clock, unknown: str = "") -> None:
        self.unknown = unknown
        self._clock = clock
        self._lock = threading.Lock()
        self._newest: deque[tuple[float, MinibatchCompleted]] = deque(maxlen=KEPT)
        self._suppressed = 0
        self._snapshots = SnapshotFigures()
        self._repeats: Counter[str] = Counter()
        self._unsummed: list[SnapshotFigures] = []
        self._query: QueryFigures | None = None
        self._state: tuple[StateFigures, ...] = ()

    def observe(self, event: DeliveryEvent) -> None:
        """Keep what a minibatch or a micro-batch did."""
        with self._lock:
            if isinstance(event, MinibatchCompleted):
                self._newest.append((self._clock.monotonic(), replace(event, partitions=())))
                done = sum(event.figures.values(), Figures(skipped=event.skipped))
                self._suppressed += done.before + done.skipped
                self._unsummed.append(event.snapshots)
                for sink, figures in event.figures.items():
                    if figures.repeats:
                        self._repeats[sink] += figures.repeats
            elif isinstance(event, QueryProgressed):
                self._query = event.query
                same = [each.operator for each in self._state]
                if same == [each.operator for each in event.state]:
                    pairs = zip(self._state, event.state, strict=True)
                    self._state = tuple(before.then(later) for before, later in pairs)
                else:
                    self._state = event.state

    def figures(self, run: int) -> RunFigures:
        """Return the figures of the run as of now."""
        with self._lock:
            known = self._query is not None
            self._snapshots = sum(self._unsummed, self._snapshots)
            self._unsummed.clear()
            return RunFigures(
                run,
                self._clock.wall(),
                self._rates(),
                self._query,
                self._state if known else None,
                "" if known else self.unknown,
                self._snapshots,
                self._minibatches(),
                self._suppressed,
                dict(self._repeats),
            )

    def _minibatches(self) -> tuple[MinibatchFigures, ...]:
        """Return the figures of the newest minibatches, one by one."""
        ahead = self._clock.wall() - self._clock.monotonic()
        found = []
        for at, event in self._newest:
            done = sum(event.figures.values(), Figures(skipped=event.skipped))
            delivered = max((each.delivered for each in event.figures.values()), default=0)
            named = str(event.minibatch)
            numbers = (delivered, done.before, done.skipped, done.parked)
            found.append(MinibatchFigures(named, at + ahead, event.seconds, *numbers))
        return tuple(found)

    def _rates(self) -> RateFigures | None:
        newest = list(self._newest)[-NEWEST:]
        if not newest:
            return None
        first_end, first = newest[0]
        seconds = [event.seconds for _, event in newest]
        delivered: dict[str, int] = {}
        for _, event in newest:
            for sink, figures in event.figures.items():
                delivered[sink] = delivered.get(sink, 0) + figures.delivered
        elapsed_s = newest[-1][0] - first_end + first.seconds
        return RateFigures(len(seconds), elapsed_s, sum(seconds), max(seconds), delivered)

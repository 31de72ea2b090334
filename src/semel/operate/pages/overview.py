"""Pipelines at a glance, and one pipeline in detail, each from a limited number of rows.

Always true:
- what was not read to its end is named (`SinkStatus.cut`), and no count is stronger than its rows;
- whether a run is alive is decided on the clock of this process, by heartbeats that it saw move.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from semel.ledger import (
    MARKERS_TABLE,
    PIPELINES_TABLE,
    STREAMS_TABLE,
    DamagedRow,
    MarkerRow,
    PartitionRow,
    is_key_text,
    key_text,
    make_key,
    make_prefix,
    sift_rows,
)
from semel.operate.pages.advice import Severity, advise
from semel.operate.status import WATCH_S, read_statuses
from semel.runtime import SystemClock
from semel.streams import stream_of_pipeline

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from semel.ledger import Ledger
    from semel.operate.pages.advice import Advice
    from semel.operate.status import PipelineStatus
    from semel.runtime import Clock

PIPELINES_MAX = 25
"""How many pipelines are on one page."""

ROWS_MAX = 1_000
"""How many rows of each table and sink are read for one pipeline."""

LISTED_ROWS_MAX = 4_000
"""How many rows of each table are read for a page of pipelines, at one sink each."""

CELLS_MAX = 240
MARKERS_SHOWN = 20
WATCHED_MAX = 1_000


@dataclass(frozen=True, slots=True)
class PipelineOverview:
    """A pipeline with what is wrong with it."""

    status: PipelineStatus
    advice: tuple[Advice, ...]

    @property
    def severity(self) -> Severity | None:
        """The most urgent of its advice; None if nothing is wrong."""
        return self.advice[0].severity if self.advice else None

    @property
    def oldest_at(self) -> float | None:
        """When the oldest event that is not settled was parked, of those that were read."""
        times = [sink.oldest_at for sink in self.status.sinks if sink.oldest_at is not None]
        return min(times, default=None)

    @property
    def cut(self) -> bool:
        """Whether it has more parked events than were read."""
        return any("parked" in sink.cut for sink in self.status.sinks)


@dataclass(frozen=True, slots=True)
class PipelinesPage:
    """Some pipelines, and the key after which the next page begins; None on the last page."""

    pipelines: tuple[PipelineOverview, ...]
    next_after: str | None
    unreadable: int = 0


@dataclass(frozen=True, slots=True)
class PipelineDetail:
    """One pipeline: the partitions of its newest minibatch and its newest markers.

    Attributes:
        partitions: by sink, in the order of their keys.
        cut: the sinks that have more partitions.
        markers: number and row, the newest first.
    """

    overview: PipelineOverview
    partitions: Mapping[str, tuple[PartitionRow, ...]]
    cut: frozenset[str]
    markers: tuple[tuple[int, MarkerRow], ...]


@dataclass(slots=True)
class _Beat:
    sign: tuple[int | None, float | None]
    since: float
    moved: bool
    looked: float


@dataclass(slots=True)
class HeartbeatWatch:
    """What this process has seen of the heartbeats of runs; for one thread.

    A caller that looks about once a second learns within `WATCH_S` whether a run is alive.
    """

    clock: Clock = field(default_factory=SystemClock)
    _beats: OrderedDict[str, _Beat] = field(default_factory=OrderedDict)

    def see(self, status: PipelineStatus) -> None:
        """Remember the heartbeat of a pipeline as it was just read."""
        now, sign = self.clock.monotonic(), (status.run, status.beat_at)
        beat = self._beats.get(status.pipeline)
        if beat is None or now - beat.looked > WATCH_S:
            self._beats[status.pipeline] = _Beat(sign, now, moved=False, looked=now)
        elif beat.sign != sign:
            self._beats[status.pipeline] = _Beat(sign, now, moved=True, looked=now)
        else:
            beat.looked = now
        self._beats.move_to_end(status.pipeline)
        while len(self._beats) > WATCHED_MAX:
            self._beats.popitem(last=False)

    def moving(self) -> dict[str, bool]:
        """Return of each pipeline that was watched for long enough whether its heartbeat moves."""
        now = self.clock.monotonic()
        known = {}
        for name, beat in list(self._beats.items()):  # another thread may add one
            quiet = now - beat.since
            if now - beat.looked > WATCH_S:
                continue
            if beat.moved and quiet < WATCH_S:
                known[name] = True
            elif quiet >= WATCH_S:
                known[name] = False
        return known


def read_pipelines_page(
    ledger: Ledger,
    after: str = "",
    moving: Mapping[str, bool] | None = None,
    clock: Clock | None = None,
) -> PipelinesPage:
    """Return up to `PIPELINES_MAX` pipelines whose key is above `after`."""
    found = ledger.store.scan(PIPELINES_TABLE, "", after=after, limit=PIPELINES_MAX + 1)
    written = [at.key for at, _ in found]
    here = written[:PIPELINES_MAX]
    names = [key_text(each) for each in here if is_key_text(each)]
    rows_max = min(ROWS_MAX, LISTED_ROWS_MAX // max(len(names), 1))
    statuses = read_statuses(
        ledger, names, watch=False, clock=clock, rows_max=rows_max, moving=moving
    )
    return PipelinesPage(
        tuple(PipelineOverview(each, advise(each)) for each in statuses),
        here[-1] if len(written) > PIPELINES_MAX else None,
        len(here) - len(names),
    )


def read_pipeline_detail(
    ledger: Ledger,
    pipeline: str,
    moving: Mapping[str, bool] | None = None,
    clock: Clock | None = None,
) -> PipelineDetail:
    """Return one pipeline in detail. Raises `ConfigurationError` if the ledger does not have it."""
    [status] = read_statuses(
        ledger, [pipeline], watch=False, clock=clock, rows_max=ROWS_MAX, moving=moving
    )
    partitions: dict[str, tuple[PartitionRow, ...]] = {}
    cut = set()
    for sink in status.sinks:
        rows, more = _partitions(ledger, status, sink.sink)
        partitions[sink.sink] = tuple(rows)
        cut |= {sink.sink} if more else set()
    markers, damaged = _markers(ledger, status)
    status = replace(status, damaged=(*status.damaged, *damaged))
    return PipelineDetail(
        PipelineOverview(status, advise(status)), partitions, frozenset(cut), tuple(markers)
    )


def _partitions(
    ledger: Ledger, status: PipelineStatus, sink: str
) -> tuple[list[PartitionRow], bool]:
    """Return the partitions of the newest minibatch at a sink, and whether there are more. Damaged
    rows are in the status already.
    """
    if status.minibatch is None:
        return [], False
    newest = status.minibatch
    place = make_prefix(status.pipeline, sink, newest.generation, newest.batch)
    rows = list(ledger.store.scan(STREAMS_TABLE, place, limit=CELLS_MAX + 1))
    good, _ = sift_rows(rows[:CELLS_MAX], PartitionRow.load)
    return [row for _, row in good], len(rows) > CELLS_MAX


def _markers(
    ledger: Ledger, status: PipelineStatus
) -> tuple[list[tuple[int, MarkerRow]], Sequence[DamagedRow]]:
    """Return the newest markers of a paced pipeline with their numbers, the newest first."""
    if status.pacing is None:
        return [], []
    stream, last = stream_of_pipeline(status.pipeline), status.pacing.marker
    numbers = range(last, max(last - MARKERS_SHOWN, 0), -1)
    places = {make_key(MARKERS_TABLE, stream, each): each for each in numbers}
    rows = ledger.store.read(list(places))
    good, damaged = sift_rows(rows.items(), MarkerRow.load)
    found = sorted(((places[at], row) for at, row in good), reverse=True, key=lambda each: each[0])
    known = {row.key for row in status.damaged}
    return found, [each for each in damaged if each.key not in known]

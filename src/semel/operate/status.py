"""The status of pipelines: which run has each, how far it is, and what waits for a person.

Always true: the clocks of two machines are not compared to decide whether a run is alive.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from semel.ledger import (
    MARKERS_TABLE,
    OWNERS_TABLE,
    PARKED_TABLE,
    DamagedRow,
    LedgerClient,
    MarkerHead,
    MarkerRow,
    ParkedRow,
    make_key,
    make_prefix,
    scan_parked,
    sift_rows,
)
from semel.operate.times import age_s, utc_text
from semel.protocol import ParkedState, PartitionState
from semel.runtime import Process, SystemClock
from semel.streams import stream_of_pipeline

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from semel.events import Minibatch
    from semel.ledger import (
        DamagedRow,
        LastResend,
        Ledger,
        PipelineSummary,
        RunFigures,
        SinkSummary,
    )
    from semel.runtime import Clock

WATCH_S = 10.0
"""How long a heartbeat is watched, on the clock of this process; a live run writes one every 3
seconds.
"""

PARKED_MAX = 10_000
"""How many rows of parked events of a sink a status reads: as many as a sink may have if its
`park_limit` is the usual one.
"""

_QUEUED = (ParkedState.WAITING, ParkedState.RESEND, ParkedState.SENDING)


class RunState(StrEnum):
    """Whether the run that has a pipeline is alive, as far as this machine can know."""

    RUNNING = "running"  # its heartbeat moves, or its process is here and wrote one just now
    ENDED = "ended"  # it recorded its end
    GONE = "gone"  # its process was on this machine and has ended
    SILENT = "silent"  # its heartbeat was watched, and did not move
    UNCONFIRMED = "unconfirmed"  # it has not recorded an end, and was not watched
    NEVER_RUN = "never run"
    UNKNOWN = "unknown"  # the row that names it is damaged


@dataclass(frozen=True, slots=True)
class ResendStatus:
    """The resends of a sink: how many were asked for, how many are being sent, and the last one."""

    asked: int
    sending: int
    last: LastResend | None

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        last = self.last
        at = None if last is None else {**last.to_json(), "at": utc_text(last.at)}
        return {"asked": self.asked, "sending": self.sending, "last": at}


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """One sink of a pipeline: how far it is, and how many events are parked at it.

    Attributes:
        last_osn: how many events got an output sequence number.
        delivered: how many of them are delivered; None where the ledger does not know.
        transmitted: the same sum of the last numbers that reached the destination.
        waiting: events behind a parked one, and resends that are not done.
        delivered_in_open: how many events of the open minibatch are delivered so far; None if none
            is open, and where only the destination knows (TRANSACTIONAL, SEQUENCED).
        oldest_at: since when the oldest parked event waits, by the clock of the machine that wrote
            it; None if none does.
        oldest_s: how long ago that was by the clock of this machine, which may differ.
        cut: the tables that were not read to their end; what is counted from their rows is a least
            number.
    """

    sink: str
    capability: str | None
    last_osn: int
    delivered: int | None
    transmitted: int | None
    pending_partitions: int
    in_doubt: int
    rejected: int
    waiting: int
    skipped: int
    discarded: int
    blocked_entities: int
    resends: ResendStatus
    delivered_in_open: int | None = None
    oldest_at: float | None = None
    oldest_s: float | None = None
    cut: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "sink": self.sink,
            "capability": self.capability,
            "last_osn": self.last_osn,
            "delivered": self.delivered,
            "transmitted": self.transmitted,
            "pending_partitions": self.pending_partitions,
            "in_doubt": self.in_doubt,
            "rejected": self.rejected,
            "waiting": self.waiting,
            "skipped": self.skipped,
            "discarded": self.discarded,
            "blocked_entities": self.blocked_entities,
            "resends": self.resends.to_json(),
            "delivered_in_open": self.delivered_in_open,
            "oldest_parked_since": utc_text(self.oldest_at),
            "cut": list(self.cut),
        }


@dataclass(frozen=True, slots=True)
class PacingStatus:
    """The newest marker of a paced pipeline: why it is there, and the latency that is reached.

    Attributes:
        interval_s: what the marker clock had chosen for the time before this marker.
        rate: events per second, as it planned.
        p50_s: estimate of the latency that half of the recent events had at most; None if there
            were none.
        p99_s: the same for 99 of 100.
    """

    application: str | None
    latency_s: float | None
    safety: float | None
    marker: int
    minibatch: str | None
    at: float
    interval_s: float
    rate: float
    reason: str
    p50_s: float | None
    p99_s: float | None

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {**asdict(self), "at": utc_text(self.at)}


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """One pipeline: its run, its newest minibatch and its sinks.

    Attributes:
        beat_at: when the run last wrote its heartbeat, by the clock of its machine.
        beat_age_s: how long ago that was by the clock of this machine, which may differ.
        process: the process id of the run, on `host`.
        figures: what the newest run that wrote figures delivers how fast, and the state of its
            query; None before the first heartbeat.
        damaged: rows that could not be read, and were left out.
        pacing: the newest marker; None if the pipeline was never paced.
    """

    pipeline: str
    run: int | None
    state: RunState
    beat_at: float | None
    beat_age_s: float | None
    host: str | None
    process: int | None
    minibatch: Minibatch | None
    complete: bool | None
    finished: bool
    inputs: tuple[str, ...]
    identity: Mapping[str, Any] | None
    partitions: int | None
    sinks: tuple[SinkStatus, ...]
    figures: RunFigures | None
    damaged: tuple[DamagedRow, ...]
    pacing: PacingStatus | None = None

    @property
    def waits_for_a_person(self) -> int:
        """How many events are in doubt or rejected."""
        return sum(sink.in_doubt + sink.rejected for sink in self.sinks)

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "pipeline": self.pipeline,
            "run": self.run,
            "state": self.state.value,
            "since": utc_text(self.beat_at),
            "seconds_since": None if self.beat_age_s is None else round(self.beat_age_s, 1),
            "host": self.host,
            "process": self.process,
            "minibatch": None if self.minibatch is None else str(self.minibatch),
            "complete": self.complete,
            "finished": self.finished,
            "inputs": list(self.inputs),
            "identity": self.identity,
            "partitions": self.partitions,
            "waits_for_a_person": self.waits_for_a_person,
            "sinks": [sink.to_json() for sink in self.sinks],
            "pacing": None if self.pacing is None else self.pacing.to_json(),
            "figures": None if self.figures is None else _figures_json(self.figures),
            "damaged": [
                {"table": row.table, "key": row.key, "what": row.what} for row in self.damaged
            ],
        }


def waits_for_a_person(ledger: Ledger, found: Sequence[PipelineStatus]) -> bool:
    """Whether any event is in doubt or rejected. Rows that a status did not read are read too, page
    by page, until one of them is.
    """
    if any(each.waits_for_a_person for each in found):
        return True
    return any(
        ParkedRow.load(text, at).state in (ParkedState.HELD, ParkedState.REJECTED)
        for each in found
        for sink in each.sinks
        if PARKED_TABLE in sink.cut
        for page in scan_parked(
            LedgerClient(ledger.store, each.pipeline), make_prefix(each.pipeline, sink.sink)
        )
        for at, text in page
    )


def read_status(
    ledger: Ledger, pipeline: str, *, watch: bool, clock: Clock | None = None
) -> PipelineStatus:
    """Return the status of one pipeline; see `read_statuses`."""
    [found] = read_statuses(ledger, [pipeline], watch=watch, clock=clock)
    return found


def read_statuses(
    ledger: Ledger,
    pipelines: Sequence[str],
    *,
    watch: bool,
    clock: Clock | None = None,
    rows_max: int | None = None,
    parked_max: int | None = PARKED_MAX,
    moving: Mapping[str, bool] | None = None,
) -> list[PipelineStatus]:
    """Return the status of pipelines.

    With `watch`, heartbeats that prove nothing yet are watched for up to `WATCH_S`, together: then
    a run is never `unconfirmed`. Without it, the answer is what the ledger and this machine know,
    and what the caller has seen: `moving` says of pipelines whether their heartbeat moves. With
    `rows_max`, at most so many rows of each table and sink are read, and in any case `parked_max`
    of those that grow with parked events (`SinkStatus.cut`).
    """
    clock = clock or SystemClock()
    if watch:
        moved = ledger.watch(pipelines, WATCH_S, clock)
        moving = {name: name in moved for name in pipelines}
    found = []
    for name in pipelines:
        summary = ledger.summary(name, rows_max, parked_max)
        moves = (moving or {}).get(name)
        status = _status_of(summary, _state_of(summary, moves, clock), clock)
        pacing, damaged = _read_pacing(ledger, name)
        found.append(replace(status, pacing=pacing, damaged=(*status.damaged, *damaged)))
    return found


def _read_pacing(ledger: Ledger, pipeline: str) -> tuple[PacingStatus | None, list[DamagedRow]]:
    """Read the newest marker of a pipeline, and the rows of it that are damaged."""
    stream = stream_of_pipeline(pipeline)
    at = make_key(MARKERS_TABLE, stream)
    heads, damaged = sift_rows(ledger.store.read([at]).items(), MarkerHead.load)
    if not heads:
        return None, damaged
    head = heads[0][1]
    at = make_key(MARKERS_TABLE, stream, head.number)
    rows, unread = sift_rows(ledger.store.read([at]).items(), MarkerRow.load)
    if not rows:
        return None, [*damaged, *unread]
    row = rows[0][1]
    status = PacingStatus(
        head.application,
        head.latency_s,
        head.safety,
        head.number,
        row.minibatch,
        row.at,
        row.interval_s,
        row.rate,
        row.reason,
        head.p50_s,
        head.p99_s,
    )
    return status, damaged


def _state_of(summary: PipelineSummary, moves: bool | None, clock: Clock) -> RunState:
    """Decide whether the run is alive; `moves` is None where its heartbeat was not watched."""
    if summary.run is None:
        unread = any(row.table == OWNERS_TABLE for row in summary.damaged)
        return RunState.UNKNOWN if unread else RunState.NEVER_RUN
    if summary.ended:
        return RunState.ENDED
    if summary.gone:
        return RunState.GONE
    if moves is None:
        return RunState.RUNNING if _runs_here(summary, clock) else RunState.UNCONFIRMED
    return RunState.RUNNING if moves else RunState.SILENT


def _runs_here(summary: PipelineSummary, clock: Clock) -> bool:
    """Whether the run's process is on this machine, is there, and wrote its heartbeat just now.
    Both times are by the clock of this machine then.
    """
    process, beat_at = summary.process, summary.beat_at
    if process is None or beat_at is None or not process.start:
        return False
    here = process.boot != "" and process.boot == Process.here().boot
    return here and not summary.gone and 0.0 <= clock.wall() - beat_at < WATCH_S


def _status_of(summary: PipelineSummary, state: RunState, clock: Clock) -> PipelineStatus:
    process, beat_at = summary.process, summary.beat_at
    return PipelineStatus(
        pipeline=summary.pipeline,
        run=summary.run,
        state=state,
        beat_at=beat_at,
        beat_age_s=None if beat_at is None else age_s(beat_at, clock),
        host=None if process is None else process.host,
        process=None if process is None else process.pid,
        minibatch=summary.minibatch,
        complete=summary.complete,
        finished=summary.finished,
        inputs=summary.inputs,
        identity=summary.identity,
        partitions=summary.partitions,
        sinks=tuple(
            _sink_status(name, sink, clock, finished=summary.finished)
            for name, sink in summary.sinks.items()
        ),
        figures=summary.figures,
        damaged=summary.damaged,
    )


def _figures_json(figures: RunFigures) -> dict[str, Any]:
    return {"at": utc_text(figures.at), **figures.to_json()}


def _sink_status(name: str, sink: SinkSummary, clock: Clock, *, finished: bool) -> SinkStatus:
    oldest = min(sink.oldest.values(), default=None)
    return SinkStatus(
        sink=name,
        capability=sink.capability,
        last_osn=sink.last_osn,
        delivered=sink.delivered,
        transmitted=None if finished or sink.cut else sum(sink.transmitted.values()),
        pending_partitions=sink.partitions.get(PartitionState.PENDING, 0),
        in_doubt=sink.parked.get(ParkedState.HELD, 0),
        rejected=sink.parked.get(ParkedState.REJECTED, 0),
        waiting=sum(sink.parked.get(state, 0) for state in _QUEUED),
        skipped=sink.parked.get(ParkedState.SKIPPED, 0),
        discarded=sink.parked.get(ParkedState.DISCARDED, 0),
        blocked_entities=sink.blocked,
        resends=ResendStatus(
            sink.parked.get(ParkedState.RESEND, 0),
            sink.parked.get(ParkedState.SENDING, 0),
            sink.last_resend,
        ),
        delivered_in_open=sink.delivered_in_open,
        oldest_at=oldest,
        oldest_s=None if oldest is None else age_s(oldest, clock),
        cut=sink.cut,
    )

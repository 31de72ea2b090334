"""The summary of a pipeline: which run has it, which minibatch is open, what each sink has done.

How many events of a sink are delivered, parked, skipped or discarded: each counts once.

Always true: an event that is parked, skipped or discarded is not counted as delivered, and where
numbers may have been assigned twice (a lost checkpoint, a rescaled pipeline) the count is None.
A summary that reads a bounded number of rows says which tables it did not read to their end.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from semel.errors import ConfigurationError
from semel.events import Minibatch
from semel.ledger import keys
from semel.ledger.keys import (
    EVENTS_TABLE,
    OPEN_TABLE,
    PARKED_TABLE,
    PIPELINES_TABLE,
    STREAMS_TABLE,
    make_prefix,
)
from semel.ledger.payloads import DamagedRow, Row, sift_rows
from semel.ledger.rows import HeadRow, OpenRow, ParkedRow, PartitionRow, read_description
from semel.ledger.verbs.batch_jobs import recorded_batch
from semel.ledger.verbs.complete import SEQUENCES_TABLE, SequenceRow
from semel.ledger.verbs.divergence import comes_anew
from semel.ledger.verbs.pruning import OUTCOMES_TABLE, OutcomeRow
from semel.ledger.verbs.runs import OWNERS_TABLE, RESCALED, STAGE_OF, OwnerRow
from semel.protocol import RECORDS_INTENTS, ParkedState, SpanState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from semel.events import EventID
    from semel.ledger.figures import RunFigures
    from semel.ledger.store.commit import Key, Store
    from semel.ledger.verbs.complete import Standing
    from semel.protocol import Judgement, PartitionState
    from semel.runtime import Process

T = TypeVar("T")

ROWS_BYTES_MAX = 8 * 2**20
"""A bounded summary stops reading the rows of a table after so many characters."""

_OF_PIPELINE = (PIPELINES_TABLE, OWNERS_TABLE, OPEN_TABLE)

FIRST_GENERATION = 1
"""The generation in which every event gets one number."""


@dataclass(frozen=True, slots=True)
class _SpanNumbers(Row):
    """What a summary reads of a `SpanRow`. Its ids are not read, because that loads Arrow."""

    TABLE = EVENTS_TABLE

    state: SpanState
    osn: tuple[int, int]


@dataclass(frozen=True, slots=True)
class _ParkedAt(Row):
    """What the metrics read of a `ParkedRow`; its payload is not read."""

    TABLE = PARKED_TABLE

    state: ParkedState
    at: float


@dataclass(slots=True)
class ParkedAges:
    """The parked events of one sink that are not final.

    Attributes:
        counts: how many, by state.
        oldest: since when the oldest is in its state, by the clock of the machine that wrote it.
        damaged: how many rows could not be read.
    """

    counts: Counter[ParkedState]
    oldest: dict[ParkedState, float]
    damaged: int = 0


def read_parked_ages(store: Store, pipeline: str, sink: str) -> ParkedAges:
    """Count the parked events of a sink that are not final; keep none: there may be millions."""
    found = ParkedAges(Counter(), {})
    for at, text in store.scan(PARKED_TABLE, make_prefix(pipeline, sink)):
        try:
            row = _ParkedAt.load(text, at)
        except DamagedRow:
            found.damaged += 1
            continue
        if not row.state.final:
            found.counts[row.state] += 1
            found.oldest[row.state] = min(found.oldest.get(row.state, row.at), row.at)
    return found


def _oldest(left: Iterable[tuple[ParkedState, float]]) -> dict[ParkedState, float]:
    """Return the earliest time of each state."""
    oldest: dict[ParkedState, float] = {}
    for state, at in left:
        oldest[state] = min(oldest.get(state, at), at)
    return oldest


@dataclass(frozen=True, slots=True)
class LastResend:
    """The event that was resent last, and the outcome.

    Attributes:
        by: who asked for it; None where it was its turn.
    """

    entity: str
    id: EventID
    state: ParkedState
    why: str
    by: str | None
    at: float

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {**asdict(self), "state": self.state.value}


@dataclass(frozen=True, slots=True)
class SinkSummary:
    """What the ledger has of one sink of a pipeline.

    Attributes:
        partitions: how many rows of partitions are kept, by state.
        last_osn: the sum of the last output sequence numbers of all partitions.
        delivered: how many events are delivered; None where the ledger does not know.
        transmitted: the last output sequence number that reached the destination, by partition.
        parked: how many events are parked, by state; pruned ones are included.
        blocked: how many entities wait behind a parked event.
        oldest: since when the oldest parked event of each state that is not final is in it.
        delivered_in_open: how many events of the open minibatch are delivered so far; None if none
            is open, for a sink whose destination keeps that itself (TRANSACTIONAL, SEQUENCED), and
            for a second stage.
        cut: the tables that were not read to their end: what is counted from their rows is a least
            number then, and `delivered`, `transmitted` and `delivered_in_open` are not known.
    """

    capability: str | None
    partitions: Mapping[PartitionState, int]
    last_osn: int
    delivered: int | None
    transmitted: Mapping[str, int]
    parked: Mapping[ParkedState, int]
    last_resend: LastResend | None
    blocked: int
    oldest: Mapping[ParkedState, float] = field(default_factory=dict)
    delivered_in_open: int | None = None
    cut: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        last = self.last_resend
        return {
            "capability": self.capability,
            "partitions": {state.value: count for state, count in self.partitions.items()},
            "last_osn": self.last_osn,
            "delivered": self.delivered,
            "transmitted": dict(self.transmitted),
            "parked": {state.value: count for state, count in self.parked.items()},
            "last_resend": None if last is None else last.to_json(),
            "blocked": self.blocked,
            "oldest_parked_at": {state.value: at for state, at in self.oldest.items()},
            "delivered_in_open": self.delivered_in_open,
            "cut": list(self.cut),
        }


@dataclass(frozen=True, slots=True)
class PipelineSummary:
    """What the ledger has of one pipeline. A field is None where the ledger does not have it.

    Attributes:
        run: the number of the run that has the pipeline.
        beat_at: when that run last wrote its heartbeat, by the clock of its machine.
        ended: whether the run recorded its own end.
        gone: whether the run's process is known to have ended.
        identity: the recorded description of the identity.
        partitions: over how many partitions entities are spread; None with position identity.
        complete: whether the newest minibatch is complete.
        inputs: where each input of the query stood after the last complete minibatch.
        judged: the decision of a person about the open minibatch.
        finished: whether it is a batch job that is finished.
        figures: the newest figures that a run wrote with its heartbeat.
        damaged: rows that could not be read, and were left out.
    """

    pipeline: str
    run: int | None
    beat_at: float | None
    ended: bool | None
    gone: bool | None
    process: Process | None
    identity: Mapping[str, Any] | None
    partitions: int | None
    minibatch: Minibatch | None
    complete: bool | None
    inputs: tuple[str, ...]
    judged: Judgement | None
    finished: bool
    sinks: Mapping[str, SinkSummary]
    figures: RunFigures | None
    damaged: tuple[DamagedRow, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "pipeline": self.pipeline,
            "run": self.run,
            "beat_at": self.beat_at,
            "ended": self.ended,
            "gone": self.gone,
            "host": None if self.process is None else self.process.host,
            "pid": None if self.process is None else self.process.pid,
            "identity": self.identity,
            "partitions": self.partitions,
            "minibatch": None if self.minibatch is None else str(self.minibatch),
            "complete": self.complete,
            "inputs": list(self.inputs),
            "judged": None if self.judged is None else self.judged.value,
            "finished": self.finished,
            "sinks": {name: sink.to_json() for name, sink in self.sinks.items()},
            "figures": None if self.figures is None else self.figures.to_json(),
            "damaged": [
                {"table": row.table, "key": row.key, "what": row.what} for row in self.damaged
            ],
        }


def summarize(
    store: Store, pipeline: str, rows_max: int | None = None, parked_max: int | None = None
) -> PipelineSummary:
    """Read the summary of a pipeline. Rows that cannot be read are left out, and are listed under
    `damaged`.

    With `rows_max`, at most so many rows of each table and sink are read, and of partitions those
    of the newest minibatch only; with `parked_max`, so many of the tables that grow with parks.

    Raises `ConfigurationError` when the ledger does not have the pipeline.
    """
    damaged: list[DamagedRow] = []
    places = {each: keys.make_key(each, pipeline) for each in _OF_PIPELINE}
    texts = store.read(list(places.values()))

    def one(table: str, load: Callable[[str, Key], T]) -> T | None:
        at = places[table]
        text = texts.get(at)
        found, unread = sift_rows([] if text is None else [(at, text)], load)
        damaged.extend(unread)
        return found[0][1] if found else None

    if places[PIPELINES_TABLE] not in texts:
        raise unknown_pipeline(store, pipeline)
    known = one(PIPELINES_TABLE, read_description) or {}
    owner, opened = one(OWNERS_TABLE, OwnerRow.load), one(OPEN_TABLE, OpenRow.load)
    sinks = {
        sink: _summarize_sink(
            _SinkRows(store, pipeline, sink, damaged, (rows_max, parked_max)), (known, opened)
        )
        for sink in sorted(known.get("sinks", {}))
    }
    judged = None if opened is None or opened.judged is None else opened.judged.decision
    return PipelineSummary(
        pipeline=pipeline,
        run=None if owner is None else owner.run,
        beat_at=None if owner is None else owner.at,
        ended=None if owner is None else owner.ended,
        gone=None if owner is None else owner.process.gone(),
        process=None if owner is None else owner.process,
        identity=known.get("identity"),
        partitions=None if opened is None else opened.partitions,
        minibatch=None if opened is None else opened.minibatch,
        complete=None if opened is None else opened.complete,
        inputs=() if opened is None else tuple(opened.inputs),
        judged=judged,
        finished=recorded_batch(known) is not None,
        sinks=sinks,
        figures=None if owner is None else owner.figures,
        damaged=tuple(damaged),
    )


def name_pipelines(store: Store) -> list[str]:
    """Return the names of the registered pipelines."""
    keyed = [found.key for found, _ in store.scan(PIPELINES_TABLE, "")]
    return [keys.key_text(each) for each in keyed if keys.is_key_text(each)]


def unknown_pipeline(store: Store, pipeline: str) -> ConfigurationError:
    """Make the error for a pipeline that a ledger does not have."""
    known = ", ".join(map(repr, name_pipelines(store))) or "none at all"
    return ConfigurationError(f"there is no pipeline {pipeline!r} in this ledger: it has {known}")


class _SinkRows:
    """Reads the rows of one sink; of each table, or only of those that grow with parks, at most so
    many and at most `ROWS_BYTES_MAX`, if there is a limit.

    Attributes:
        cut: the tables that have more.
    """

    def __init__(
        self,
        store: Store,
        pipeline: str,
        sink: str,
        damaged: list[DamagedRow],
        most: tuple[int | None, int | None],
    ) -> None:
        self.sink = sink
        self.cut: list[str] = []
        self._store = store
        self._place = make_prefix(pipeline, sink)
        self._damaged = damaged
        self._rows_max, self._parked_max = most

    def every(
        self, table: str, load: Callable[[str, Key], T], below: str = "", *, quiet: bool = False
    ) -> list[tuple[Key, T]]:
        """Return the rows of a table that can be read; the others are listed unless `quiet`."""
        prefix = self._place + below
        grows = table in (PARKED_TABLE, keys.HEADS_TABLE, OUTCOMES_TABLE)
        most = self._parked_max if self._rows_max is None and grows else self._rows_max
        found, unread = sift_rows(self._first(table, prefix, most), load)
        if not quiet:
            self._damaged.extend(unread)
        return found

    def below(self, minibatch: Minibatch | None) -> str:
        """Return where the rows of partitions are read: of a bounded summary, one minibatch."""
        if self._rows_max is None or minibatch is None:
            return ""
        return make_prefix(minibatch.generation, minibatch.batch)

    def _first(self, table: str, prefix: str, most: int | None) -> Iterable[tuple[Key, str]]:
        size = 0
        if most is None:
            yield from self._store.scan(table, prefix)
            return
        for taken, row in enumerate(self._store.scan(table, prefix, limit=most + 1)):
            if taken == most or size > ROWS_BYTES_MAX:
                self.cut.append(table)
                return
            yield row
            size += len(row[1])


def _summarize_sink(rows: _SinkRows, of: tuple[Mapping[str, Any], OpenRow | None]) -> SinkSummary:
    known, opened = of
    sink = rows.sink
    newest = rows.below(None if opened is None else opened.minibatch)
    done = (recorded_batch(known) or {}).get(sink)
    standings = {
        row.partition: row.after for _, row in rows.every(SEQUENCES_TABLE, SequenceRow.load)
    }
    last = sum(standing.osn for standing in standings.values())
    streams = [row for _, row in rows.every(STREAMS_TABLE, PartitionRow.load, newest)]
    parked = [row for _, row in rows.every(PARKED_TABLE, ParkedRow.load)]
    outcomes = [row for _, row in rows.every(OUTCOMES_TABLE, OutcomeRow.load)]
    blocked = len(rows.every(keys.HEADS_TABLE, HeadRow.load))
    spans = rows.every(EVENTS_TABLE, _SpanNumbers.load, newest, quiet=True)
    exact = not {SEQUENCES_TABLE, STREAMS_TABLE, PARKED_TABLE, EVENTS_TABLE} & {*rows.cut}
    delivered = _count_delivered(sink, known, opened, standings, (parked, outcomes))
    capability = known["sinks"][sink].get("capability")
    return SinkSummary(
        capability=capability,
        partitions=dict(Counter(row.state for row in streams)),
        last_osn=last if done is None else done.count,
        delivered=delivered if exact and OUTCOMES_TABLE not in rows.cut else None,
        transmitted=_transmitted(spans, standings, streams, parked) if exact else {},
        parked=_count_parked(parked, outcomes),
        last_resend=_last_resend(parked),
        blocked=blocked,
        oldest=_oldest((row.state, row.at) for row in parked if not row.state.final),
        delivered_in_open=None
        if STAGE_OF in known["sinks"][sink] or not exact
        else _delivered_in_open(capability, opened, spans, streams, parked),
        cut=tuple(rows.cut),
    )


def _delivered_in_open(
    capability: str | None,
    opened: OpenRow | None,
    spans: Sequence[tuple[Key, _SpanNumbers]],
    streams: Sequence[PartitionRow],
    parked: Sequence[ParkedRow],
) -> int | None:
    """Count the events of the settled spans of the open minibatch that were not set aside."""
    if opened is None or opened.complete or capability not in RECORDS_INTENTS:
        return None
    names = {keys.written_part(row.partition): row.partition for row in streams}
    aside = Counter(
        (row.partition, row.osn)
        for row in parked
        if _is_left(row) and row.minibatch == opened.minibatch
    )
    count = 0
    for at, span in spans:
        place = keys.split_key(at.key)
        generation, batch = (keys.key_number(each) for each in place[2:4])
        if span.state is SpanState.SETTLED and Minibatch(generation, batch) == opened.minibatch:
            first, last = span.osn
            partition = names.get(place[4], "")
            count += last - first + 1
            count -= sum(
                times
                for (of, osn), times in aside.items()
                if of == partition and first <= osn <= last
            )
    return count


def _transmitted(
    spans: Sequence[tuple[Key, _SpanNumbers]],
    standings: Mapping[str, Standing],
    streams: Sequence[PartitionRow],
    parked: Sequence[ParkedRow],
) -> dict[str, int]:
    """Return C of each partition: the last OSN that is known to be transmitted, including the
    settled spans of a minibatch that is not complete.
    """
    sent = {name: standing.sent for name, standing in standings.items()}
    aside = {(row.partition, row.osn) for row in parked if not row.state.only_marks}
    names = {keys.written_part(row.partition): row.partition for row in streams}
    for at, span in spans:
        partition, last = names.get(keys.split_key(at.key)[4], ""), span.osn[1]
        while (partition, last) in aside:
            last -= 1
        if partition and span.state is SpanState.SETTLED and last >= span.osn[0]:
            sent[partition] = max(sent.get(partition, 0), last)
    return dict(sorted(sent.items()))


def _last_resend(parked: Iterable[ParkedRow]) -> LastResend | None:
    """Return the event that was resent last, among those that are kept, with its outcome."""
    tried = [row for row in parked if row.attempts and row.state is not ParkedState.SENDING]
    if not tried:
        return None
    last = max(tried, key=lambda row: (row.at, row.minibatch, row.position))
    return LastResend(last.shown or last.entity, last.event, last.state, last.why, last.by, last.at)


def _count_parked(
    parked: Sequence[ParkedRow], outcomes: Sequence[OutcomeRow]
) -> dict[ParkedState, int]:
    """Count parked events by state, those whose rows were pruned included."""
    found = Counter(row.state for row in parked)
    found[ParkedState.DISCARDED] += sum(len(row.discarded) for row in outcomes)
    found[ParkedState.SKIPPED] += sum(len(row.skipped) for row in outcomes)
    return dict(+found)


def _count_delivered(
    sink: str,
    described: Mapping[str, Any],
    opened: OpenRow | None,
    standings: Mapping[str, Standing],
    aside: tuple[Sequence[ParkedRow], Sequence[OutcomeRow]],
) -> int | None:
    """Count the delivered events of complete minibatches, or of a finished batch job. None where
    the ledger does not know, and for a second stage, whose manifests have no numbers.
    """
    parked, outcomes = aside
    left = [row for row in parked if _is_left(row)]
    done = (recorded_batch(described) or {}).get(sink)
    if STAGE_OF in described["sinks"][sink]:
        return None
    if done is not None:
        return done.count - sum(not comes_anew(row) for row in left)
    if opened is None or opened.minibatch.generation != FIRST_GENERATION or RESCALED in described:
        return None
    left = [row for row in left if row.osn <= _last_osn(standings, row.partition)]
    pruned = sum(len(row.discarded) + len(row.skipped) for row in outcomes)
    return sum(each.osn for each in standings.values()) - len(left) - pruned


def _is_left(row: ParkedRow) -> bool:
    """Whether an event was parked or dropped, and not delivered since."""
    return not row.state.only_marks and row.state is not ParkedState.DELIVERED


def _last_osn(standings: Mapping[str, Standing], partition: str) -> int:
    return standings[partition].osn if partition in standings else 0

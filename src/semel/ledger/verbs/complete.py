"""Completing minibatches: the reports of tasks, the driver's second commit, and what it advances.

Always true:
- complete happens once, from reports that Spark handed to the driver, and from the very attempts
  that hold the partitions; afterwards no task can act on the minibatch;
- a row of `sequences` holds the partition's standing now, and before each of the last two
  minibatches that moved it, so that a replay of one that is not swept starts from the same numbers;
- it is written with `complete` or when a generation is closed, never by a task.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from semel.errors import Diverged, Fenced
from semel.events import EventID, IdSet
from semel.ledger import journal
from semel.ledger.client import CommitFigures
from semel.ledger.journal import SnapshotFigures
from semel.ledger.keys import STREAMS_TABLE, make_key, make_prefix
from semel.ledger.payloads import ADDED, LATER, Form, Row, codec_of, read_integer, read_list
from semel.ledger.rows import OpenRow, PartitionRow
from semel.ledger.store.commit import Conflict, Equals, Put
from semel.protocol import PartitionState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from semel.events import Attempt
    from semel.ledger.client import LedgerClient
    from semel.ledger.journal import JournalEntry
    from semel.ledger.store.commit import Key, Requirement, Update
    from semel.ledger.verbs.open import OpenMinibatch


SEQUENCES_TABLE = "sequences"


@dataclass(frozen=True, slots=True)
class PositionMark:
    """A position watermark: every event up to `upto` is handled, and those in `above`.

    Attributes:
        digest: of the event at `upto`, because a recreated topic looks just like a re-read.
        generation: in which the partition was last read; an older one means that it is re-read.
        begins: the first event that ever arrived, until all events up to some event are handled.
    """

    upto: EventID | None = None
    digest: str | None = None
    above: IdSet = field(default=IdSet.EMPTY)
    generation: int = 1
    begins: Annotated[EventID | None, ADDED] = None


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a partition stands between two minibatches.

    Attributes:
        osn: L, the last OSN that an event has.
        sent: the last OSN that was transmitted; less than L where the last events were parked.
        mark: the position watermark, where the identity has one.
    """

    osn: int = 0
    sent: int = 0
    mark: PositionMark | None = None


_STANDING = codec_of(Standing)


def _read_before(value: Any, name: str) -> tuple[tuple[int, Standing], ...]:
    read = _STANDING.read_as
    return tuple(
        (read_integer(serial, name), read(standing, "a standing"))
        for serial, standing in read_list(value, name)
    )


def _write_before(before: tuple[tuple[int, Standing], ...]) -> list[Any]:
    return [[serial, _STANDING.write(standing)] for serial, standing in before]


_BEFORE = Form(_read_before, _write_before)


@dataclass(frozen=True, slots=True)
class SequenceRow(Row):
    """The standing of a partition now, and before the last two minibatches that moved it.

    Attributes:
        never: whether none of its events was ever delivered, only parked or dropped.
        unanswered: how many of the last calls had an unknown outcome, in a row.
    """

    TABLE = SEQUENCES_TABLE

    partition: str
    after: Standing
    before: Annotated[tuple[tuple[int, Standing], ...], _BEFORE]
    never: Annotated[bool, LATER] = False
    unanswered: Annotated[int, LATER] = 0

    def as_of(self, serial: int) -> Standing:
        """Return the standing from which the minibatch `serial` starts."""
        for moved_by, standing in self.before:
            if serial <= moved_by:
                return standing
        return self.after

    def moved(self, serial: int, after: Standing) -> SequenceRow:
        """Return the row after the minibatch `serial`."""
        kept = [each for each in self.before if each[0] < serial][-1:]
        before = (*kept, (serial, self.as_of(serial)))
        return replace(self, after=after, before=before)

    def tried(self, delivered: int, unanswered: int) -> SequenceRow:
        """Return the row after the calls of a minibatch: how many events it delivered, and how many
        of its last calls had an unknown outcome.
        """
        never = not delivered and (self.never or not self.after.osn)
        return replace(self, never=never, unanswered=unanswered)

    @property
    def delivered(self) -> bool:
        """Whether any of its events was ever delivered, as far as is known."""
        return self.after.osn > 0 and not self.never


def sequence_key(pipeline: str, sink: str, partition: str) -> Key:
    """Return the key of one partition of one sink."""
    return make_key(SEQUENCES_TABLE, pipeline, sink, partition)


def read_sequences(client: LedgerClient, sink: str) -> dict[str, SequenceRow]:
    """Return the row of every partition of the sink."""
    rows = client.scan(SEQUENCES_TABLE, make_prefix(client.pipeline, sink))
    found = (SequenceRow.load(text, at) for at, text in rows)
    return {row.partition: row for row in found}


def had_partitions(client: LedgerClient, sinks: Collection[str]) -> set[str]:
    """Name those of several sinks that were ever given a partition; of one alone nothing is read.
    Rescaling keeps their watermarks only.
    """
    if len(sinks) < 2:
        return set()
    known = {sink: journal.watermark_of(sink).name for sink in sinks}
    return {
        sink
        for sink, name in known.items()
        if read_sequences(client, sink)
        or client.scan(journal.JOURNAL_TABLE, make_prefix(client.pipeline, name), limit=1)
    }


def advance_sequence(
    client: LedgerClient, sink: str, row: SequenceRow, serial: int, after: Standing
) -> Put:
    """Return the update that advances a partition; it is part of complete or close."""
    at = sequence_key(client.pipeline, sink, row.partition)
    return Put(at, row.moved(serial, after).dump())


# -- complete


@dataclass(frozen=True, slots=True)
class Report:
    """What one attempt reports of one partition of one sink.

    Attributes:
        osn: the last OSN that an event has.
        sent: the last OSN that is known to be transmitted.
        count: events of the order, those of earlier attempts included.
        short: whether the input ended before a recorded span did. The end of input proves nothing
            to a task, so the driver decides.
        mark: the position watermark after this partition.
        entries: the journal rows to write with `complete`.
        delivered: events that this attempt delivered.
        suppressed: events that an earlier attempt delivered, and that were not sent again.
        parked: events that this attempt parked, without those that policy `skip` dropped.
        doubted: those of the parked ones that are held in doubt.
        dropped: events in doubt that this attempt dropped, by policy `skip`.
        parked_before: events that an earlier attempt parked, whatever their state is now.
        dropped_before: events that an earlier attempt dropped, by policy `skip`.
        skipped: events that were handled (delivered, parked or dropped) before a lost checkpoint.
        columns: the type of each column, in their order, if known.
        unanswered: calls in a row, at the end, whose outcome is unknown.
        placed: what the destination returned about the location of the events, if they have one.
        bytes: the size of the rows of which this attempt delivered events.
        seconds: how long it took to deliver them, with the ledger writes.
        repeats: events that were dropped, because their ids came in an earlier minibatch.
        snapshots: what was read and written of the state; in the first report of a partition.
        began: when the attempt began with the partition, by the clock of its machine.
        ended: when it had delivered it.
        commits: what the attempt asked of the ledger; in the first report of a partition.
        audited: its file in the audit log by its name, if there is one.
    """

    sink: str
    partition: str
    attempt: Attempt
    count: int
    digest: str
    osn: int
    sent: int = 0
    first: list[Any] | None = None
    last: list[Any] | None = None
    short: bool = False
    mark: PositionMark | None = None
    entries: tuple[JournalEntry, ...] = ()
    delivered: int = 0
    suppressed: int = 0
    parked: int = 0
    doubted: int = 0
    dropped: int = 0
    parked_before: int = 0
    dropped_before: int = 0
    skipped: int = 0
    unanswered: int = 0
    placed: Mapping[str, Any] | None = None
    columns: dict[str, str] | None = None
    bytes: int = 0
    seconds: float = 0.0
    snapshots: SnapshotFigures = field(default_factory=SnapshotFigures)
    repeats: int = 0
    began: float = 0.0
    ended: float = 0.0
    commits: CommitFigures = field(default_factory=CommitFigures)
    audited: Mapping[str, Any] | None = None


def complete(
    client: LedgerClient,
    opening: OpenMinibatch,
    done: str,
    reports: Sequence[Report],
    sinks: Iterable[str],
    stages: Mapping[str, str],
    also: Sequence[Update] = (),
) -> None:
    """Turn every pending partition complete, advance L, write watermarks and drop locations, in
    one commit; `done` is the row `open` once complete, `stages` the second stage of each sink that
    has one, `also` updates that belong to the minibatch.

    Raises `Fenced` if a later run or attempt has it, `StopRequested` if the run was asked to stop
    meanwhile and nothing was written, `Diverged` if the reports do not cover what is
    recorded. May be repeated after a lost reply.
    """
    # 1. Match every recorded partition with its report, before anything is written: after an error
    #    the minibatch is still open, and a restart replays it.
    open_key = client.open_key
    if opening.row.settled and reports:
        raise AssertionError("a settled minibatch has no reports, because no task runs")
    try:
        requirements, updates = _completing(client, opening, reports, sinks, stages)
    except Diverged:
        # 2. A run that was replaced sees rows that the later run changed: it is fenced, and the
        #    content of the query is not in question.
        text = client.read_one(open_key)
        if opening.asked_to_stop(text, open_key):
            raise opening.stop_requested from None
        if text not in (opening.text, done):
            raise _fenced(client, opening, "a later run opened another minibatch") from None
        raise
    # 3. One commit for all partitions, numbers, watermarks and the row `open`: a crash before it
    #    leaves everything to be replayed, a crash after it leaves a complete minibatch that Spark
    #    may run again and that is only counted. No task can write from then on.
    try:
        client.commit(
            [Equals(open_key, opening.text), *requirements],
            [Put(open_key, done), *updates, *also],
        )
    except Conflict:
        # 4. If the row is as this commit leaves it, an earlier try of it passed and its reply was
        #    lost.
        text = client.read_one(open_key)
        if text == done:
            return
        # 5. The run was asked to stop: after that commit, or before it and nothing else happened.
        if text is not None and OpenRow.load(text, open_key).is_stop_of(done):
            return
        if opening.asked_to_stop(text, open_key):
            raise opening.stop_requested from None
        raise _fenced(client, opening, "its row or one of its partitions was taken over") from None


def _completing(
    client: LedgerClient,
    opening: OpenMinibatch,
    reports: Sequence[Report],
    sinks: Iterable[str],
    stages: Mapping[str, str],
) -> tuple[list[Requirement], list[Update]]:
    """Match every recorded partition with its report; return the commit that completes them."""
    requirements: list[Requirement] = []
    updates: dict[Update, None] = {}
    by_place = {(report.sink, report.partition): report for report in reports}
    for sink in () if opening.row.settled else sinks:
        start = make_prefix(client.pipeline, sink, *astuple(opening.row.minibatch))
        for row_key, text in client.scan(STREAMS_TABLE, start):
            row = PartitionRow.load(text, row_key)
            report = _matching(
                client, opening, sink, row, by_place.pop((sink, row.partition), None)
            )
            if row.state is PartitionState.COMPLETE:
                continue
            requirements.append(Equals(row_key, text))
            updates[Put(row_key, _completed(row, report, stages.get(sink)).dump())] = None
            updates[_advanced(client, opening, sink, row, report)] = None
            updates |= dict.fromkeys(
                journal.journal_updates(client.pipeline, _new(opening, report))
            )
    if by_place:
        raise _fenced(client, opening, f"partition {next(iter(by_place))[1]} has no row any more")
    return requirements, list(updates)


def _matching(
    client: LedgerClient,
    opening: OpenMinibatch,
    sink: str,
    row: PartitionRow,
    report: Report | None,
) -> Report:
    """Return the report of a row. Raises `Diverged` or `Fenced` if it does not fit."""
    if report is None or report.short:
        place = _place(client, opening, sink, row)
        seen = (
            "no task reports it" if report is None else f"a replay has only {report.count} events"
        )
        raise Diverged(
            f"{place}: an earlier attempt delivered from it, and {seen}. The query does not "
            "return the same rows for the same input; nothing was repeated. Look at the query, "
            f"then run `semel resolve {client.pipeline}/{opening.row.minibatch} "
            "as-recorded|as-replayed`"
        )
    if row.state is PartitionState.COMPLETE:
        if (report.count, report.digest) != (row.count, row.digest):
            from semel.events import changed_columns  # loads Arrow

            place = _place(client, opening, sink, row)
            raise Diverged(
                f"{place}: complete with {row.count} events and digest {row.digest}, but a "
                f"replay has {report.count} events and digest {report.digest}; nothing was "
                f"repeated.{changed_columns(row.columns, report.columns)} Look at the query, "
                "then run `semel resolve "
                f"{client.pipeline}/{opening.row.minibatch} as-recorded|as-replayed`"
            )
    elif report.attempt != row.attempt:
        raise _fenced(
            client,
            opening,
            f"attempt {row.attempt} took partition {row.partition} from {report.attempt}",
        )
    return report


def _place(client: LedgerClient, opening: OpenMinibatch, sink: str, row: PartitionRow) -> str:
    return (
        f"pipeline {client.pipeline!r}, sink {sink!r}, minibatch {opening.row.minibatch}, "
        f"partition {row.partition}"
    )


def _advanced(
    client: LedgerClient, opening: OpenMinibatch, sink: str, row: PartitionRow, report: Report
) -> Put:
    known = opening.sequence(sink, row.partition)
    known = known.tried(report.delivered + report.suppressed, report.unanswered)
    before = known.as_of(opening.row.serial)
    after = Standing(report.osn, max(report.sent, before.sent), report.mark or before.mark)
    return advance_sequence(client, sink, known, opening.row.serial, after)


def _fenced(client: LedgerClient, opening: OpenMinibatch, why: str) -> Fenced:
    return Fenced(
        f"pipeline {client.pipeline!r}: minibatch {opening.row.minibatch} of run "
        f"{opening.row.run} cannot be completed: {why}. Nothing was changed; the later run or "
        "attempt continues"
    )


def _new(opening: OpenMinibatch, report: Report) -> list[JournalEntry]:
    """Return the journal rows of a report. Counters belong to all sinks together: those of a
    minibatch that was complete before are recorded already.
    """
    return [
        entry
        for entry in report.entries
        if not opening.row.again or entry.operator != journal.COUNTERS.name
    ]


def _completed(row: PartitionRow, report: Report, stage: str | None) -> PartitionRow:
    """Return the row of a complete partition: its content, and no location any more."""
    return replace(
        row,
        state=PartitionState.COMPLETE,
        count=report.count,
        digest=report.digest,
        first=report.first,
        last=report.last,
        location=None,
        placed=None if report.placed is None else dict(report.placed),
        stage=None if report.placed is None else stage,
        # What was complete before, and went on, keeps the file that it had.
        audited={**(row.audited or {}), **(report.audited or {})} or None,
    )

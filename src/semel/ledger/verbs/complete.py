"""Completing minibatches: what tasks report, and the driver's second commit.

Always true:
- complete happens once, from reports that Spark handed to the driver, and from the very attempts
  that hold the partitions; afterwards no task can act on the minibatch.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from semel.errors import Diverged, Fenced
from semel.events.digests import changed_columns
from semel.ledger import journal
from semel.ledger.keys import OPEN, STREAMS, key, prefix
from semel.ledger.rows import PartitionRow
from semel.ledger.store.commit import Conflict, Equals, Put
from semel.ledger.verbs import sequences
from semel.ledger.verbs.sequences import Standing
from semel.protocol import PartitionState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from semel.events.event import Attempt
    from semel.ledger.client import LedgerClient
    from semel.ledger.journal import Entry
    from semel.ledger.store.commit import Requirement, Update
    from semel.ledger.verbs.open import OpenMinibatch
    from semel.ledger.verbs.sequences import Mark


@dataclass(frozen=True, slots=True)
class Report:
    """One partition of one sink, as one attempt saw it.

    Attributes:
        osn: the last OSN that was given to an event.
        sent: the last OSN that is known to be transmitted.
        count: events of the order, those of earlier attempts included.
        short: the input ended before a recorded span did; an end of input proves nothing, so the
            driver judges.
        mark: the position watermark after this partition.
        entries: what goes into the journal with `complete`.
        delivered: events that this attempt delivered.
        suppressed: events that an attempt before delivered, and that were not sent again.
        parked: events that this attempt parked; what policy `skip` dropped is not among them.
        doubted: those of the parked ones that are held in doubt.
        dropped: events in doubt that this attempt dropped, by policy `skip`.
        parked_before: events that an attempt before parked, whatever became of them since.
        dropped_before: events that an attempt before dropped, by policy `skip`.
        skipped: events that were handled (delivered, parked or dropped) before a lost checkpoint.
        columns: the type of each column, in their order, where that is known.
        unanswered: calls in a row, at the end, whose outcome is unknown.
        placed: what the destination tells of the place they were put at, where they have one.
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
    mark: Mark | None = None
    entries: tuple[Entry, ...] = ()
    delivered: int = 0
    suppressed: int = 0
    parked: int = 0
    doubted: int = 0
    dropped: int = 0
    parked_before: int = 0
    dropped_before: int = 0
    skipped: int = 0
    unanswered: int = 0
    location: str | None = None
    placed: Mapping[str, Any] | None = None
    columns: dict[str, str] | None = None
    figures: dict[str, float] = field(default_factory=dict)


def complete(
    client: LedgerClient,
    opening: OpenMinibatch,
    done: str,
    reports: Sequence[Report],
    sinks: Iterable[str],
    stages: Mapping[str, str],
) -> None:
    """Turn every pending partition complete, advance L, write watermarks and drop locations, in
    one commit; `done` is the row `open` once complete, `stages` the second stage of each sink that
    has one.

    Raises `Fenced` when a later run or attempt has it, `Diverged` when the reports do not cover
    what is recorded. May be repeated after a lost reply.
    """
    open_key = key(OPEN, client.pipeline)
    if opening.settled and reports:
        raise AssertionError("nothing of a settled minibatch is run, so nothing is reported")
    try:
        requirements, updates = _completing(client, opening, reports, sinks, stages)
    except Diverged:
        if client.read_one(open_key) not in (opening.text, done):
            raise _fenced(client, opening, "a later run has gone on") from None
        raise
    try:
        client.commit(
            [Equals(open_key, opening.text), *requirements], [Put(open_key, done), *updates]
        )
    except Conflict:
        if client.read_one(open_key) != done:
            raise _fenced(
                client, opening, "its row or one of its partitions changed hands"
            ) from None


def _completing(
    client: LedgerClient,
    opening: OpenMinibatch,
    reports: Sequence[Report],
    sinks: Iterable[str],
    stages: Mapping[str, str],
) -> tuple[list[Requirement], list[Update]]:
    """Match every recorded partition with its report, and make what completes them."""
    requirements: list[Requirement] = []
    updates: dict[Update, None] = {}
    by_place = {(report.sink, report.partition): report for report in reports}
    for sink in () if opening.settled else sinks:
        start = prefix(client.pipeline, sink, *astuple(opening.row.minibatch))
        for row_key, text in client.scan(STREAMS, start):
            row = PartitionRow.load(text, row_key)
            report = _matching(
                client, opening, sink, row, by_place.pop((sink, row.partition), None)
            )
            if row.state is PartitionState.COMPLETE:
                continue
            requirements.append(Equals(row_key, text))
            updates[Put(row_key, _completed(row, report, stages.get(sink)).dump())] = None
            updates[_advanced(client, opening, sink, row, report)] = None
            updates |= dict.fromkeys(journal.updates(client.pipeline, _new(opening, report)))
    if by_place:
        raise _fenced(client, opening, f"no row is left of partition {next(iter(by_place))[1]}")
    return requirements, list(updates)


def _matching(
    client: LedgerClient,
    opening: OpenMinibatch,
    sink: str,
    row: PartitionRow,
    report: Report | None,
) -> Report:
    """Give the report that belongs to a row, or say what does not fit."""
    place = (
        f"pipeline {client.pipeline!r}, sink {sink!r}, minibatch "
        f"{opening.row.minibatch}, partition {row.partition}"
    )
    if report is None or report.short:
        seen = (
            "no task came for it" if report is None else f"a replay gave only {report.count} events"
        )
        raise Diverged(
            f"{place}: an earlier attempt delivered from it, and {seen}. The query does not "
            "give the same rows for the same input; nothing was repeated. Look at the query, "
            f"then say `semel resolve {client.pipeline}/{opening.row.minibatch} "
            "as-recorded|as-replayed`"
        )
    if row.state is PartitionState.COMPLETE:
        if (report.count, report.digest) != (row.count, row.digest):
            raise Diverged(
                f"{place}: complete with {row.count} events and digest {row.digest}, but a "
                f"replay gave {report.count} events and digest {report.digest}; nothing was "
                f"repeated.{changed_columns(row.columns, report.columns)} Look at the query, "
                "then say `semel resolve "
                f"{client.pipeline}/{opening.row.minibatch} as-recorded|as-replayed`"
            )
    elif report.attempt != row.attempt:
        raise _fenced(
            client,
            opening,
            f"attempt {row.attempt} took partition {row.partition} from {report.attempt}",
        )
    return report


def _advanced(
    client: LedgerClient, opening: OpenMinibatch, sink: str, row: PartitionRow, report: Report
) -> Put:
    known = opening.sequence(sink, row.partition)
    known = known.tried(report.delivered + report.suppressed, report.unanswered)
    before = opening.standing(sink, row.partition)
    after = Standing(report.osn, max(report.sent, before.sent), report.mark or before.mark)
    return sequences.advance(client, sink, known, opening.row.serial, after)


def _fenced(client: LedgerClient, opening: OpenMinibatch, why: str) -> Fenced:
    return Fenced(
        f"pipeline {client.pipeline!r}: minibatch {opening.row.minibatch} of run "
        f"{opening.row.run} cannot be completed: {why}. Nothing was changed; the later run or "
        "attempt goes on"
    )


def _new(opening: OpenMinibatch, report: Report) -> Iterator[Entry]:
    """Give what a report brings to the journal. Counters are of all sinks together: those of a
    minibatch that was complete before stand there already.
    """
    return (
        entry
        for entry in report.entries
        if not opening.row.again or entry.operator != journal.COUNTERS.name
    )


def _completed(row: PartitionRow, report: Report, stage: str | None) -> PartitionRow:
    """Give the row as it stands when complete: what it held, and no location any more."""
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
    )

"""Partitions that an older generation left pending, and the commit that closes one of them.

Always true: a partition is closed only after `open` was rewritten and its row taken over, so that
no attempt of the older generation can write any more; the events handled there go into the
watermarks in the commit that removes the row.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from semel.errors import Fenced
from semel.events import Attempt
from semel.ledger import journal
from semel.ledger.keys import EVENTS_TABLE, STREAMS_TABLE, make_prefix
from semel.ledger.rows import PartitionRow, SpanRow, minibatch_of
from semel.ledger.store.commit import Conflict, Delete, Equals, Put, Sweep
from semel.ledger.verbs.complete import advance_sequence
from semel.ledger.verbs.parked import NO_PARKS, HeadMoved, Parks
from semel.protocol import PartitionState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from semel.events import Minibatch
    from semel.ledger.client import LedgerClient
    from semel.ledger.journal import JournalEntry
    from semel.ledger.store.commit import Key, Requirement, Update
    from semel.ledger.verbs.complete import Standing
    from semel.ledger.verbs.open import OpenMinibatch
    from semel.runtime import Process

THE_DRIVER = -1
"""The task number of the driver itself: below every task of its run, above every run before."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """A partition that an older generation left pending, taken over by this run."""

    sink: str
    minibatch: Minibatch
    key: Key
    row: PartitionRow
    text: str
    spans: tuple[SpanRow, ...]
    predecessor: PartitionRow


@dataclass(frozen=True, slots=True)
class ClosedPartition:
    """The result of closing a partition: its new standing, journal rows, and parked events."""

    standing: Standing
    entries: Sequence[JournalEntry] = ()
    parks: Parks = field(default=NO_PARKS)


def take_leftovers(
    client: LedgerClient, opening: OpenMinibatch, sinks: Iterable[str], process: Process
) -> list[Leftover]:
    """Take over every partition that an older generation left pending; sweep complete ones, also
    those of a sink that was removed for a while.
    """
    found: list[Leftover] = []
    for sink in sinks:
        for row_key, text in client.scan(STREAMS_TABLE, make_prefix(client.pipeline, sink)):
            minibatch = minibatch_of(row_key)
            older = minibatch.generation < opening.row.minibatch.generation
            if not older and not is_unswept(minibatch, opening.row.minibatch):
                continue
            row = PartitionRow.load(text, row_key)
            if row.state is PartitionState.COMPLETE:
                _remove(client, opening, row_key, text)
            elif older:
                found.append(_taken(client, opening, sink, minibatch, row_key, text, process))
    return found


def is_unswept(minibatch: Minibatch, opened: Minibatch) -> bool:
    """Whether rows of a minibatch exist although the next but one of its generation was opened: its
    sink was removed then, so nothing swept them.
    """
    return minibatch.generation == opened.generation and minibatch.batch < opened.batch - 1


def _taken(
    client: LedgerClient,
    opening: OpenMinibatch,
    sink: str,
    minibatch: Minibatch,
    row_key: Key,
    text: str,
    process: Process,
) -> Leftover:
    """Write this run into the row, then read its spans."""
    # 1. Take the row over first: an attempt of the older generation may still be alive, and a span
    #    that it recorded after the spans were read would be lost.
    before = PartitionRow.load(text, row_key)
    row = replace(
        before,
        attempt=_later(before, opening.row.run, process),
        process=process,
        at=client.clock.wall(),
        taken=True,
        waited=False,
    )
    payload = row.dump()
    if payload != text:
        _commit(client, opening, [Equals(row_key, text)], [Put(row_key, payload)])
    # 2. From here on the spans do not change. A crash before the partition is closed leaves them to
    #    the next run.
    found = client.scan(EVENTS_TABLE, row_key.key + "/")
    spans = tuple(SpanRow.load(span, at) for at, span in found)
    return Leftover(sink, minibatch, row_key, row, payload, spans, before)


def _later(before: PartitionRow, run: int, process: Process) -> Attempt:
    """Return the attempt as which the driver acts: later than the one that has the partition, even
    if that is of the same run, and not later than any task to come.
    """
    if before.attempt.run < run:
        return Attempt(run, THE_DRIVER)
    ours = before.process == process
    return before.attempt if ours else Attempt(run, before.attempt.task + 1)


def close_partition(
    client: LedgerClient, opening: OpenMinibatch, leftover: Leftover, fold: ClosedPartition
) -> None:
    """Fold a partition into the watermarks and remove its rows. Raises `HeadMoved` if only a head
    changed.
    """
    # 1. One commit removes the rows and writes what was handled, so a crash leaves either the rows
    #    to be closed again, or the watermarks that skip their events: never neither.
    serial = opening.row.serial - 1
    known = opening.sequence(leftover.sink, leftover.row.partition)
    updates: list[Update] = [
        Delete(leftover.key),
        Sweep(EVENTS_TABLE, leftover.key.key + "/"),
        advance_sequence(client, leftover.sink, known, serial, fold.standing),
        *journal.journal_updates(client.pipeline, fold.entries),
        *fold.parks.updates,
    ]
    # 2. It requires the row as this run took it over: a later run that took it closes it itself.
    requirements: list[Requirement] = [
        Equals(leftover.key, leftover.text),
        *fold.parks.requirements,
    ]
    _commit(client, opening, requirements, updates, gone=leftover.key)


def _remove(client: LedgerClient, opening: OpenMinibatch, row_key: Key, text: str) -> None:
    updates: list[Update] = [Delete(row_key), Sweep(EVENTS_TABLE, row_key.key + "/")]
    _commit(client, opening, [Equals(row_key, text)], updates, gone=row_key)


def _commit(
    client: LedgerClient,
    opening: OpenMinibatch,
    requirements: Sequence[Requirement],
    updates: Sequence[Update],
    gone: Key | None = None,
) -> None:
    """Commit under `open`. Raises `Fenced` if the run was replaced, `StopRequested` if it was asked
    to stop, `HeadMoved` if a head moved.
    """
    open_key = client.open_key
    landed = None if gone is None else (lambda: client.read_one(gone) is None)
    try:
        client.commit([Equals(open_key, opening.text), *requirements], updates, landed)
    except Conflict:
        held = [each for each in requirements[:1] if isinstance(each, Equals)]
        rows = client.read(open_key, *(each.key for each in held))
        ours = all(rows.get(each.key) == each.payload for each in held)
        if ours and rows.get(open_key) == opening.text:
            raise HeadMoved from None
        if opening.asked_to_stop(rows.get(open_key), open_key):
            raise opening.stop_requested from None
        raise Fenced(
            f"pipeline {client.pipeline!r}: run {opening.row.run} was replaced while it closed "
            "partitions of an older generation; the later run closes them"
        ) from None

"""The inbox of a stream as a stream with markers, in the process that Spark has for a reader.

Always true:
- the children of a partition have no events in a micro-batch that has some of its parents', and
  none before the parents have ended;
- markers are kept in the ledger that has the inbox; one that another reader set is taken as well.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError, SemelError
from semel.ledger import LedgerClient, MarkerHead, MarkerRow, open_store
from semel.runtime import SystemClock
from semel.spark.sources.kafka_reader import marker_column
from semel.spark.sources.marking import Cut, Marker
from semel.spark.sources.options import LATEST
from semel.spark.sources.positions import Border, Offset
from semel.streams import Inbox, Markers, MarkerTaken

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from semel.spark.sources.options import ReadingPlace as Start
    from semel.spark.sources.options import SourceOptions
    from semel.spark.sources.positions import Piece, Place, Positions
    from semel.streams import InboxPartition, MarkerClock

CLOCK = SystemClock()
_LOG = logging.getLogger("semel")
WHERE = "semel.inbox"
SAMPLE_EVENTS = 100
MARKERS_KEPT = 10_000
PRUNE_EVERY = 100
"""How many markers a stream keeps, and after how many older ones are removed."""
SAMPLE_EVERY_S = 10.0


class InboxStream:
    """The stream of an inbox that one query reads."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        store = open_store(options.ledger)
        self.inbox = Inbox(store, options.stream)
        self.marks = Markers(LedgerClient(store, options.stream), options.stream)
        self._size = (-SAMPLE_EVERY_S, 0.0)
        self._children: dict[Place, list[Place]] = {}
        self._finals: Positions = {}
        self._registered = False

    # -- what a reader of markers asks for

    def ends(self) -> Positions:
        """Return the end of each partition."""
        return {self._place(each): each.end for each in self._layout()}

    def begins(self, places: Sequence[Place]) -> Positions:
        """Return the first offset that is kept of each of these partitions."""
        wanted = set(places)
        found = {self._place(each): each.begin for each in self._layout()}
        return {place: at for place, at in found.items() if place in wanted}

    def cut(self, last: Marker, base: Positions, now: float) -> Cut:
        """Return the ends, of children only if their parents were read to their end."""
        del last, now
        ends, held = {}, False
        for each in self._layout():
            place = self._place(each)
            begin = base.get(place, each.begin)
            ends[place] = each.end if place in base and self._ended(place, base) else begin
            held = held or ends[place] < each.end
        return Cut(ends, held=held)

    def follows(self, last: Marker, marker: Marker) -> bool:
        """A micro-batch may have any markers, as far as `together` says."""
        del last, marker
        return True

    def together(self, start: Positions, end: Positions) -> Positions:
        """Return a range without the children whose parents do not end before it."""
        moved = {place for place, at in end.items() if at > start.get(place, at)}
        if not moved <= self._children.keys():
            self._layout()
        held = {place: start[place] for place in moved if not self._ended(place, start)}
        return {**end, **held}

    def after(self, number: int, most: int) -> list[Marker]:
        """Return the first markers with greater numbers."""
        return [_marker(at, row) for at, row in self.marks.after(number, most)]

    def put(self, marker: Marker, clock: MarkerClock) -> bool:
        """Record a marker; False if another reader was first."""
        newest = self.marks.newest()
        if newest.number + 1 != marker.number:
            return False
        head = MarkerHead(
            0,
            clock.dump(),
            clock.application.name,
            clock.application.latency_s,
            clock.application.safety,
        )
        try:
            self.marks.append(newest, _row(marker), head)
        except MarkerTaken:
            return False
        if marker.number % PRUNE_EVERY == 0:
            self.marks.prune(marker.number - MARKERS_KEPT)
        return True

    def bytes_per_event(self, start: Positions, end: Positions) -> float:
        """Return the mean size of events, from the first ones of each partition."""
        now = CLOCK.monotonic()
        if now - self._size[0] < SAMPLE_EVERY_S:
            return self._size[1]
        size = events = 0
        for (_, partition), stop in end.items():
            at = start.get((self._options.stream, partition), stop)
            found = self.inbox.read(partition, at, min(stop, at + SAMPLE_EVENTS))
            size, events = size + found.nbytes, events + found.num_rows
        self._size = (now, size / events if events else self._size[1])
        return self._size[1]

    # -- where a query begins, and what a micro-batch reads

    def start(self, start: Start, *, default: str) -> Offset:
        """Return where a query or a batch begins. Raises `ConfigurationError` if it is gone."""
        layout = self._layout()
        begins = {self._place(each): each.begin for each in layout}
        ends = {self._place(each): each.end for each in layout}
        if start.marker is not None:
            if start.marker == 0:
                return Offset(0, begins, initial=True)
            row = self.marks.read(start.marker)
            if row is None:
                raise ConfigurationError(
                    f"{WHERE}: the stream {self._options.stream!r} has no marker {start.marker} "
                    f"yet: the newest one is {self.marks.newest().number}"
                )
            return Offset(start.marker, {**begins, **_positions(row)}, initial=True)
        if start.positions is None:
            latest = (start.word or default) == LATEST
            return Offset(0, ends if latest else begins, initial=True)
        unknown = sorted(start.positions.keys() - begins.keys())
        if unknown:
            topic, partition = unknown[0]
            raise ConfigurationError(
                f"{WHERE}: startingOffsets names {topic}/{partition}, which stream "
                f"{self._options.stream!r} does not have"
            )
        return Offset(0, {**begins, **start.positions}, initial=True)

    def borders(self, start: Offset, stop: Positions) -> Offset:
        """Return the end of a batch, with the markers inside it."""
        found: list[Marker] = []
        number = start.marker
        while several := self.after(number, 1_000):
            number = several[-1].number
            found += several
        inside = [
            Border(each.number, each.positions)
            for each in found
            if all(at <= stop.get(place, at) for place, at in each.positions.items())
        ]
        return Offset(0, stop, tuple(inside))

    def kept(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Return what can be read. Raises `SemelError` if events were pruned, unless that is
        allowed.
        """
        layout = {each.partition: each for each in self._layout()}
        found = []
        for piece in pieces:
            at = layout.get(piece.partition)
            if at is not None and at.begin <= piece.start <= piece.stop <= at.end:
                found.append(piece)
                continue
            has = "no such partition" if at is None else f"{at.begin:,} to {at.end:,}"
            text = (
                f"{WHERE}: events {piece.start:,} to {piece.stop:,} of "
                f"{piece.topic}/{piece.partition} were pruned, or the ledger was restored: it has "
                f"{has}. Set failOnDataLoss=false to go on without them"
            )
            if self._options.fail_on_data_loss:
                raise SemelError(text)
            _LOG.warning("%s", text)
            if at is not None and max(at.begin, piece.start) < min(at.end, piece.stop):
                found.append(piece.within(at.begin, at.end))
        return found

    def lost(self, text: str) -> None:
        """Refuse to go on without events, or warn where that is allowed."""
        if self._options.fail_on_data_loss:
            raise SemelError(f"{WHERE}: {text}")
        _LOG.warning("%s: %s", WHERE, text)

    def completed(self, positions: Positions) -> None:
        """Record that this reader needs no event before these positions, for the retention."""
        reader = self._options.reader
        if reader is not None:
            if not self._registered:
                self.register()
            self.inbox.reader_completed(
                reader, {partition: at for (_, partition), at in positions.items()}
            )

    def register(self) -> None:
        """Register the reader: from now on nothing is pruned that it has not completed."""
        if self._options.reader is not None:
            self.inbox.register_reader(self._options.reader)
        self._registered = True

    def learned(self) -> Mapping[str, Any]:
        """Return what the marker clock had learned when the newest marker was set."""
        return self.marks.newest().head.clock

    def newest(self) -> Marker | None:
        """Return the newest marker; None if there is none."""
        number = self.marks.newest().number
        row = self.marks.read(number) if number else None
        return None if row is None else _marker(number, row)

    def _layout(self) -> list[InboxPartition]:
        found = self.inbox.layout()
        self._finals = {self._place(each): each.end for each in found if each.final}
        stream = self._options.stream
        self._children = {
            self._place(each): [(stream, parent) for parent in each.parents] for each in found
        }
        return found

    def _ended(self, place: Place, positions: Positions) -> bool:
        """Whether all parents of a partition have ended, and were read to their end."""
        return all(
            parent in self._finals and positions.get(parent, 0) >= self._finals[parent]
            for parent in self._children.get(place, ())
        )

    def _place(self, partition: InboxPartition) -> Place:
        return self._options.stream, partition.partition


def _row(marker: Marker) -> MarkerRow:
    return MarkerRow(
        {f"{topic}/{partition}": at for (topic, partition), at in marker.positions.items()},
        marker.interval_s,
        marker.rate,
        marker.reason,
        marker.at,
        marker.events,
    )


def _positions(row: MarkerRow) -> Positions:
    found: Positions = {}
    for name, at in row.positions.items():
        topic, _, partition = name.rpartition("/")
        with suppress(ValueError):
            found[topic, int(partition)] = int(at)
    return found


def _marker(number: int, row: MarkerRow) -> Marker:
    return Marker(
        number,
        _positions(row),
        row.interval_s,
        row.rate,
        row.reason,
        row.at,
        row.events or 0,
    )


EVENTS_AT_ONCE = 10_000
_INBOXES: dict[tuple[str, str, int], Inbox] = {}
"""The inboxes that tasks of this process have opened, with the process that did: a connection does
not survive a fork.
"""


def read_events(
    options: SourceOptions, piece: Piece, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the events of a range, in the columns of the source. Runs in Spark's Python workers."""
    key = (options.ledger, options.stream, os.getpid())
    inbox = _INBOXES.get(key)
    if inbox is None:
        inbox = _INBOXES[key] = Inbox(options.ledger, options.stream)
    for at in range(piece.start, piece.stop, EVENTS_AT_ONCE):
        found = inbox.read(piece.partition, at, min(at + EVENTS_AT_ONCE, piece.stop))
        offsets = found.column("offset").to_numpy()
        marked = found.append_column("marker", [marker_column(offsets, piece.cuts)])
        yield from marked.cast(schema).combine_chunks().to_batches()

"""A lane: one partition on its way to one sink, buffered, counted and digested.

Always true:
- rows enter in the partition's order and leave it in that order, each counted and digested once;
- nothing is written for a partition without events;
- the end of the input proves nothing: what was recorded and did not come is reported as short, not
  as done.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from semel.delivery.calls import forgets
from semel.delivery.doubts import stop_if_held
from semel.delivery.expected import Expected
from semel.delivery.parks import schema_text
from semel.errors import Diverged, HeldInDoubt
from semel.events import Chunk, Digest, Position, Rows
from semel.events.chunks import chunk_key, escaped
from semel.ledger.parked import parked_key, parking, read_heads, read_parked
from semel.ledger.partitions import Holding
from semel.ledger.reports import Report
from semel.protocol import Found
from semel.sinks.progress import lost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

    from semel.delivery.assignment import Assignment
    from semel.delivery.surroundings import Surroundings
    from semel.delivery.watermarks import Watermark
    from semel.ledger.parked import Entity, Heads, Parks
    from semel.ledger.rows import ParkedRow
    from semel.ledger.scribe import Scribe
    from semel.ledger.store import Key
    from semel.sinks import Sink

    Mask = NDArray[np.bool_]

UNKNOWN_MAX = 10


@dataclass(slots=True)
class Figures:
    """What a lane did."""

    delivered: int = 0
    suppressed: int = 0
    parked: int = 0
    doubted: int = 0
    skipped: int = 0


class Way(Protocol):
    """How the events of a lane reach a destination of one kind."""

    def wants(self) -> int:
        """How many rows the next step takes."""

    def step(self, rows: Rows) -> int:
        """Take the next rows (fewer than wanted only at the end of the input); say how many are
        done with.
        """

    def finish(self) -> None:
        """The input has ended."""

    def close(self) -> None:
        """Give the session back, also after an error."""


@dataclass
class Lane:
    """One partition of one minibatch for one sink, as one attempt sees it. Runs on an executor."""

    assignment: Assignment
    sink: Sink
    scribe: Scribe
    around: Surroundings
    watermark: Watermark
    figures: Figures = field(default_factory=Figures)
    heads: Heads = field(default_factory=dict)
    marks: dict[Key, str] = field(default_factory=dict)
    parked_at: set[int] = field(default_factory=set)
    position: int = 0
    short: bool = False
    sent: int = 0
    unknown_in_a_row: int = 0
    parked_rows: int | None = None
    placed: Mapping[str, Any] | None = None
    _buffer: list[Rows] = field(default_factory=list)
    _buffered: int = 0
    _entered: int = 0
    _digest: Digest | None = None
    _ends: list[list[Any]] = field(default_factory=list)
    _ahead: tuple[int, Digest] | None = None
    _expected: Expected | None = None
    way: Way = field(init=False)
    holding: Holding = field(init=False)

    def __post_init__(self) -> None:
        self.holding = Holding(
            self.scribe,
            self.assignment.opening,
            self.sink.name,
            self.assignment.partition,
            self.assignment.claimant(self.sink),
            may_grow=isinstance(self.assignment.identity, Position),
        )

    # -- rows in, rows out

    def push(self, rows: Rows) -> None:
        """Take the next rows of the partition's order."""
        handled = self.watermark.handled(rows)
        if handled.any():
            self.figures.skipped += int(handled.sum())
            self._fill(rows.take(handled))
            rows = rows.take(~handled)
        if not len(rows):
            return
        self.watermark.observe(rows)
        rows = rows.renumber(self._entered)
        if self._digest is None:
            self._digest = Digest(rows.batch.schema)
        if not self._ends:
            self._ends.append(rows.sort_key(0))
        self._ends[1:] = [rows.sort_key(len(rows) - 1)]
        self._entered += len(rows)
        self._buffer.append(rows)
        self._buffered += len(rows)
        while self._buffered and self._buffered >= self.way.wants():
            self._step()

    def _fill(self, rows: Rows) -> None:
        """Events that came before: some may be parked and wait for their payload."""
        if self._expected is None:
            self._expected = Expected(self.scribe, self.sink.name)
        self._expected.fill(rows, schema_text(rows))

    def finish(self) -> Report | None:
        """The input has ended: deliver what is buffered and report; None for a partition without
        events.
        """
        while self._buffered:
            self._step()
        if not self._entered or self._digest is None:
            return None
        self.way.finish()
        row = self.holding.row
        if row is None:
            raise AssertionError("events came, so the partition was claimed")
        entry = self.watermark.entry()
        return Report(
            sink=self.sink.name,
            partition=self.assignment.partition,
            attempt=self.assignment.attempt,
            count=self._entered,
            digest=self._digest.hexdigest(),
            osn=row.osn + self._entered,
            sent=self.sent,
            first=self._ends[0],
            last=self._ends[1],
            short=self.short,
            mark=self.watermark.mark(),
            entries=() if entry is None else (entry,),
            delivered=self.figures.delivered,
            suppressed=self.figures.suppressed,
            parked=self.figures.parked,
            doubted=self.figures.doubted,
            skipped=self.figures.skipped,
            placed=self.placed,
        )

    def _step(self) -> None:
        """Let the way take what it wants, and let go of what it is done with."""
        wanted = self.way.wants()
        if len(self._buffer[0]) < min(wanted, self._buffered):
            self._buffer = [Rows.concat(self._buffer)]
        rows = self._buffer[0]
        done = self.way.step(rows.slice(0, wanted) if wanted < len(rows) else rows)
        if done:
            self._advance_digest(rows, done)
            self.position += done
            self._buffered -= done
            if done < len(rows):
                self._buffer[0] = rows.slice(done, len(rows))
            else:
                self._buffer.pop(0)

    def _advance_digest(self, rows: Rows, done: int) -> None:
        """Digest what the way is done with, once: often it was digested already, to be recorded."""
        if self._digest is None:
            raise AssertionError("rows came, so there is a digest")
        if self._ahead is not None and self._ahead[0] == done:
            self._digest = self._ahead[1]
        else:
            self._digest.update(rows.batch.slice(0, done))
        self._ahead = None

    # -- what ways ask of a lane

    @property
    def last_osn_before(self) -> int:
        """L: the OSN of the event at position p is L + p + 1."""
        row = self.holding.row
        if row is not None:
            return row.osn
        return self.assignment.opening.standing(self.sink.name, self.assignment.partition).osn

    @property
    def acknowledged(self) -> int:
        """The last OSN that the destination acknowledged, as ledger and this attempt know."""
        opening = self.assignment.opening
        return max(opening.acknowledged(self.sink.name, self.assignment.partition), self.sent)

    def require_kept(self, osn: int) -> None:
        """Raise `Diverged` when the destination stands below what it acknowledged."""
        if osn < self.acknowledged:
            raise lost(self.assignment.place(self.sink), self.acknowledged, osn)

    def within_lease(self) -> None:
        """Act, or succeed, only on what the ledger said within a lease, counted from before it was
        asked; else ask it again. Raises `Fenced` when another attempt has the partition.
        """
        if self.around.clock.monotonic() - self.holding.asked_at > self.sink.lease_s:
            self.holding.check()

    def forgotten(self, recorded_at: float) -> bool:
        """Whether the destination may not know the key of a call, when a repeat made now arrives,
        of what was sent after `recorded_at` (REPEATABLE).
        """
        return forgets(self.sink, self.scribe.clock.wall() - recorded_at)

    def running_after(self, rows: Rows, count: int) -> str:
        """Give the digest of the partition up to and with the first `count` of `rows`, which come
        next.
        """
        if self._digest is None:
            raise AssertionError("rows came, so there is a digest")
        if not count:
            return self._digest.hexdigest()
        copy = self._digest.copy()
        copy.update(rows.batch.slice(0, count))
        self._ahead = (count, copy)
        return copy.hexdigest()

    def chunk(self, rows: Rows, start: int, stop: int, span: int = 0) -> Chunk:
        """Make the chunk of the range [start, stop), of which `rows` are to be sent."""
        target = self.assignment
        minibatch = target.opening.row.minibatch
        return Chunk(
            rows,
            start,
            stop,
            key=chunk_key(
                target.pipeline, self.sink.name, minibatch, target.partition, span, (start, stop)
            ),
            osn_base=self.last_osn_before + 1,
            prefix=f"{escaped(target.pipeline)}/{escaped(self.sink.name)}/",
        )

    def diverged(self, stop: int, recorded: object, found: object, rows: Rows) -> Diverged:
        """Say that a replay produced other content than what was delivered."""
        named = ", ".join(f"{rows.id(at)} of {rows.scope(at)!r}" for at in range(min(3, len(rows))))
        return Diverged(
            f"{self.assignment.place(self.sink)}: events [{self.position}, {stop}) of the order "
            f"were recorded with {recorded}, and the replay gives {found} (from event {named} on). "
            "The query does not give the same rows for the same input. Nothing was repeated; look "
            "at the query, then say `semel resolve "
            f"{self.assignment.pipeline}/{self.assignment.opening.row.minibatch} "
            "as-recorded|as-replayed --reason ...`"
        )

    def look_at_heads(self, found: Found) -> None:
        """Read which entities are blocked: always when pending, when `open` says so for a new
        partition.
        """
        blocked = self.sink.name in self.assignment.opening.row.blocked
        if found is not Found.PENDING and not blocked:
            return
        self.heads.clear()
        self.heads.update(read_heads(self.scribe, self.sink.name))
        stop_if_held(self.scribe, self.sink, self.assignment.place(self.sink))

    def blocked(self, rows: Rows, besides: AbstractSet[Entity] = frozenset()) -> Mask:
        """Mark the rows whose entity waits for an event before them."""
        entities = {*self.heads, *besides}
        if not entities or not self.ordered(rows):
            return np.zeros(len(rows), dtype=bool)
        mask = rows.of_entities({entity for entity, _ in entities})
        for at in np.flatnonzero(mask).tolist():
            mask[at] = (rows.entity(at), rows.scope(at)) in entities
        return mask

    def ordered(self, rows: Rows) -> bool:
        """Whether the events of an entity wait for each other."""
        return rows.ordered and self.assignment.order and len(rows) > 0

    def reread_heads(self) -> None:
        """Look at the heads again, because one of them is not as it was; and at marks on events."""
        self.heads.clear()
        self.heads.update(read_heads(self.scribe, self.sink.name))
        self.read_marks()

    def read_marks(self) -> list[ParkedRow]:
        """Read what is parked of this partition; rows that only mark a doubt may be parked over."""
        minibatch = self.assignment.opening.row.minibatch
        found = [
            item
            for item in read_parked(self.scribe, self.sink.name, minibatch=minibatch)
            if item[1].partition == self.assignment.partition
        ]
        self.marks.clear()
        self.marks.update({at: text for at, row, text in found if row.state.only_marks})
        self.parked_at.update(row.position for _, row, _ in found if not row.state.only_marks)
        return [row for _, row, _ in found]

    def parks(self, rows: Sequence[ParkedRow]) -> Parks:
        """Make what a commit needs to park `rows`, given the heads and marks as last seen."""
        return parking(self.assignment.pipeline, self.sink.name, rows, self.heads, self.marks)

    def count_unknown(self, why: object) -> None:
        """Take note of an unknown outcome; too many in a row stop the pipeline."""
        self.unknown_in_a_row += 1
        if self.unknown_in_a_row >= UNKNOWN_MAX:
            raise HeldInDoubt(
                f"{self.assignment.place(self.sink)}: {UNKNOWN_MAX} outcomes in a row were "
                f"unknown, the last because of: {why}. A broken destination or function must not "
                "park a stream. Mend it, resolve what `semel parked ls` shows, then start the "
                "query again"
            )

    def limit_parks(self, parks: Parks) -> None:
        """See that no more gets parked than the sink allows."""
        if not parks.rows:
            return
        if self.parked_rows is None:
            standing = read_parked(self.scribe, self.sink.name)
            self.parked_rows = sum(not row.state.final for _, row, _ in standing)
        if self.parked_rows + len(parks.rows) > self.sink.park_limit:
            raise HeldInDoubt(
                f"{self.assignment.place(self.sink)}: {self.parked_rows} events are parked, and "
                f"park_limit is {self.sink.park_limit}. Resolve what `semel parked ls` shows, then "
                "start the query again"
            )

    def parked(self, parks: Parks) -> None:
        """Take note of what was parked, and of the heads and marks that it left."""
        parks.apply_to(self.heads)
        for row in parks.rows:
            if row.state.only_marks:
                at = parked_key(self.assignment.pipeline, self.sink.name, row)
                self.marks[at] = row.dump()
            else:
                self.parked_at.add(row.position)
        self.figures.parked += len(parks.rows)
        if self.parked_rows is not None:
            self.parked_rows += len(parks.rows)

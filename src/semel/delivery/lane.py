"""A lane: one partition on its way to one sink, buffered, counted and digested.

Always true:
- rows enter and leave in the partition's order, each counted and digested once;
- nothing is written for a partition without events;
- the end of the input proves nothing: recorded events that did not come are reported as short, not
  as done.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from semel.delivery.calling import forgets
from semel.delivery.faults import Faults
from semel.delivery.parking.in_doubt import stop_if_held
from semel.delivery.parking.parking import Expected, schema_text
from semel.errors import Diverged, HeldInDoubt, NotDelivered
from semel.events import Chunk, Digest, Rows, changed_columns, chunk_key, column_types, key_part
from semel.ledger import PartitionClaim, Report, parked_key, plan_parking, read_heads, read_parked
from semel.protocol import Found, ParkedState
from semel.sinks import lost

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

    from semel.delivery.assignment import Assignment
    from semel.delivery.recovery.watermarks import Watermark
    from semel.ledger import Entity, Heads, LedgerClient, ParkedRow, Parks
    from semel.ledger.store import Key
    from semel.runtime import Runtime
    from semel.sinks import Sink

    Mask = NDArray[np.bool_]


COLUMNS_MAX = 4_000
"""How many characters of names and types of columns the row of a partition has."""


@dataclass(slots=True)
class Figures:
    """What a lane did, and what it found done; `Report` explains each of them."""

    delivered: int = 0
    suppressed: int = 0
    parked: int = 0
    doubted: int = 0
    dropped: int = 0
    parked_before: int = 0
    dropped_before: int = 0
    skipped: int = 0


def recorded_columns(rows: Rows) -> dict[str, str] | None:
    """Return the types of the columns as the ledger keeps them; None if they are too many."""
    columns = column_types(rows.batch.schema)
    size = sum(len(name) + len(kind) for name, kind in columns.items())
    return columns if size <= COLUMNS_MAX and len(columns) == rows.batch.num_columns else None


class Strategy(Protocol):
    """The delivery of the events of a lane to a destination of one kind."""

    def wants(self) -> int:
        """Return how many rows the next step takes."""

    def step(self, rows: Rows) -> int:
        """Process the next rows (fewer than wanted only at the end of the input); return how many
        of them are done.
        """

    def finish(self) -> None:
        """Finish: the input has ended."""

    def close(self) -> None:
        """Close the session, also after an error."""


@dataclass
class Lane:
    """One partition of one minibatch for one sink, as one attempt sees it. Runs on an executor."""

    assignment: Assignment
    sink: Sink
    client: LedgerClient
    runtime: Runtime
    watermark: Watermark
    figures: Figures = field(default_factory=Figures)
    heads: Heads = field(default_factory=dict)
    marks: dict[Key, str] = field(default_factory=dict)
    parked_at: set[int] = field(default_factory=set)
    dropped_at: set[int] = field(default_factory=set)
    resent_at: set[int] = field(default_factory=set)
    position: int = 0
    short: bool = False
    sent: int = 0
    parked_rows: int | None = None
    placed: Mapping[str, Any] | None = None
    _buffer: list[Rows] = field(default_factory=list)
    _buffered: int = 0
    _entered: int = 0
    _digest: Digest | None = None
    _ends: list[list[Any]] = field(default_factory=list)
    _ahead: tuple[int, Digest] | None = None
    _expected: Expected | None = None
    way: Strategy = field(init=False)
    claim: PartitionClaim = field(init=False)
    faults: Faults = field(init=False)

    def __post_init__(self) -> None:
        self.faults = Faults(self)
        self.claim = PartitionClaim(
            self.client,
            self.assignment.opening,
            self.sink.name,
            self.assignment.partition,
            self.assignment.claimant(self.sink),
            may_grow=self.assignment.identity.may_grow,
            absorbed_by=self.sink.absorbed_by,
        )

    # -- rows in, rows out

    def push(self, rows: Rows) -> None:
        """Take the next rows, in the partition's order."""
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
            self.claim.columns = recorded_columns(rows)
        if not self._ends:
            self._ends.append(rows.sort_key(0))
        self._ends[1:] = [rows.sort_key(len(rows) - 1)]
        self._entered += len(rows)
        self._buffer.append(rows)
        self._buffered += len(rows)
        while self._buffered and self._buffered >= self.way.wants():
            self._step()

    def _fill(self, rows: Rows) -> None:
        """Fill in the payload of parked events that wait for it, from events that came before."""
        if self._expected is None:
            self._expected = Expected(self.client, self.sink.name)
        self._expected.fill(rows, schema_text(rows))

    def finish(self) -> Report | None:
        """Deliver what is buffered, because the input has ended, and report; None for a partition
        without events.
        """
        while self._buffered:
            self._step()
        if not self._entered or self._digest is None:
            return None
        self.way.finish()
        row = self.claim.row
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
            sent=self._last_sent(row.osn),
            first=self._ends[0],
            last=self._ends[1],
            short=self.short,
            mark=self.watermark.mark(),
            entries=() if entry is None else (entry,),
            delivered=self.figures.delivered,
            suppressed=self.figures.suppressed,
            parked=self.figures.parked,
            doubted=self.figures.doubted,
            dropped=self.figures.dropped,
            parked_before=self.figures.parked_before,
            dropped_before=self.figures.dropped_before,
            skipped=self.figures.skipped,
            unanswered=self.faults.in_a_row,
            placed=self.placed,
            columns=self.claim.columns,
        )

    def _last_sent(self, before: int) -> int:
        """Return C: the last OSN known to be transmitted. If the destination does not report it,
        every event that is not parked is delivered at the end; 0 if none is.
        """
        if not (self.sink.capability.records_intents or self.sink.whole):
            return self.sent
        last = self._entered - 1
        while last in self.parked_at:
            last -= 1
        return before + last + 1 if last >= 0 else 0

    def _step(self) -> None:
        """Pass the strategy the rows that it wants, and drop those that are done."""
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
        """Digest rows that are done, once: often they were digested already, to be recorded."""
        if self._digest is None:
            raise AssertionError("rows came, so there is a digest")
        if self._ahead is not None and self._ahead[0] == done:
            self._digest = self._ahead[1]
        else:
            self._digest.update(rows.batch.slice(0, done))
        self._ahead = None

    # -- used by strategies

    @property
    def last_osn_before(self) -> int:
        """L: the OSN of the event at position p is L + p + 1."""
        row = self.claim.row
        if row is not None:
            return row.osn
        return self.assignment.opening.standing(self.sink.name, self.assignment.partition).osn

    @property
    def acknowledged(self) -> int:
        """The last OSN that the destination acknowledged, as ledger and attempt know it."""
        opening = self.assignment.opening
        return max(opening.acknowledged(self.sink.name, self.assignment.partition), self.sent)

    def require_kept(self, osn: int) -> None:
        """Raise `Diverged` if the destination stands below what it acknowledged."""
        if osn < self.acknowledged:
            raise lost(self.assignment.place(self.sink), self.acknowledged, osn)

    def within_lease(self) -> None:
        """Ask the ledger again if its last answer is older than a lease, counted from before it was
        asked; an attempt acts, or succeeds, only within the lease. Raises `Fenced` if another
        attempt has the partition.
        """
        if self.runtime.clock.monotonic() - self.claim.asked_at > self.sink.lease_s:
            self.claim.check()

    def forgotten(self, recorded_at: float) -> bool:
        """Whether the destination may have forgotten the key of a call made after `recorded_at` by
        the time a repeat sent now arrives (REPEATABLE).
        """
        return forgets(self.sink, self.client.clock.wall() - recorded_at)

    def running_after(self, rows: Rows, count: int) -> str:
        """Return the digest of the partition up to and including the first `count` of `rows`, which
        come next.
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
        """Return the chunk of the range [start, stop), of which `rows` are to be sent."""
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
            prefix=f"{key_part(target.pipeline)}/{key_part(self.sink.name)}/",
        )

    def unreached(self, why: NotDelivered) -> NotDelivered:
        """Return the error for a call whose retries are used up and of which nothing arrived:
        where, and what to do.
        """
        if str(why).startswith("pipeline "):
            return why
        text = str(why).rstrip(".")
        return NotDelivered(
            f"{self.assignment.place(self.sink)}: {text}. It was tried for "
            f"{self.sink.retry.for_s:g} s. Nothing is in doubt because of it: see that the "
            "destination can be reached, then start again",
            why.retry_after_s,
        )

    def diverged(self, stop: int, recorded: object, found: object, rows: Rows) -> Diverged:
        """Return the error for a replay that produced other content than what was delivered."""
        named = ", ".join(f"{rows.id(at)} of {rows.scope(at)!r}" for at in range(min(3, len(rows))))
        before = None if self.claim.row is None else self.claim.row.columns
        changed = changed_columns(before, self.claim.columns)
        return Diverged(
            f"{self.assignment.place(self.sink)}: events [{self.position}, {stop}) of the order "
            f"were recorded with {recorded}, and the replay gives {found} (from event {named} on). "
            f"The query does not give the same rows for the same input.{changed} Nothing was "
            "repeated; look at the query, then run `semel resolve "
            f"{self.assignment.pipeline}/{self.assignment.opening.row.minibatch} "
            "as-recorded|as-replayed --reason ...`"
        )

    def look_at_heads(self, found: Found) -> None:
        """Read which entities are blocked: always for a pending partition, for a new one only if
        `open` found some.
        """
        blocked = self.sink.name in self.assignment.opening.row.blocked
        if found is not Found.PENDING and not blocked:
            return
        self.heads.clear()
        self.heads.update(read_heads(self.client, self.sink.name))
        stop_if_held(self.client, self.sink, self.assignment.place(self.sink))

    def blocked(self, rows: Rows, besides: AbstractSet[Entity] = frozenset()) -> Mask:
        """Mark the rows whose entity waits for an earlier event."""
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
        """Read the heads again, because one of them changed, and the marks on events."""
        self.heads.clear()
        self.heads.update(read_heads(self.client, self.sink.name))
        self.read_marks()

    def read_marks(self) -> list[ParkedRow]:
        """Read what is parked of this partition; a row that only marks a doubt may be replaced by a
        parked one.
        """
        minibatch = self.assignment.opening.row.minibatch
        found = [
            item
            for item in read_parked(self.client, self.sink.name, minibatch=minibatch)
            if item[1].partition == self.assignment.partition
        ]
        self.marks.clear()
        self.marks.update({at: text for at, row, text in found if row.state.only_marks})
        rows = [row for _, row, _ in found]
        self._note_parked(rows)
        return rows

    def _note_parked(self, rows: Iterable[ParkedRow]) -> None:
        """Remember the events that this lane does not send."""
        passed = [row for row in rows if not row.state.only_marks]
        self.parked_at.update(row.position for row in passed)
        for state, places in (
            (ParkedState.SKIPPED, self.dropped_at),
            (ParkedState.DELIVERED, self.resent_at),
        ):
            places.update(row.position for row in passed if row.state is state)

    def count_before(self, positions: range | set[int], *, parked_now: int = 0) -> None:
        """Count the events at these positions, which an earlier attempt handled; `parked_now` of
        them were left for this attempt to park.
        """
        dropped = sum(each in positions for each in self.dropped_at)
        waiting = self.parked_at - self.dropped_at - self.resent_at
        parked = sum(each in positions for each in waiting) - parked_now
        self.figures.dropped_before += dropped
        self.figures.parked_before += parked
        self.figures.suppressed += len(positions) - dropped - parked - parked_now

    def parks(self, rows: Sequence[ParkedRow]) -> Parks:
        """Return what a commit needs to park `rows`, given the heads and marks as last seen."""
        return plan_parking(self.assignment.pipeline, self.sink.name, rows, self.heads, self.marks)

    @property
    def proven(self) -> bool:
        """Whether the sink is known to have delivered anything: in this partition of the minibatch,
        or in any partition of one that is complete.
        """
        figures = self.figures
        return bool(
            self.faults.succeeded
            or figures.delivered
            or figures.suppressed
            or self.assignment.opening.delivered_before(self.sink.name)
        )

    def limit_parks(self, parks: Parks) -> None:
        """Raise `HeldInDoubt` if more would be parked than the sink allows."""
        if not parks.rows:
            return
        if self.parked_rows is None:
            standing = read_parked(self.client, self.sink.name)
            self.parked_rows = sum(not row.state.final for _, row, _ in standing)
        if self.parked_rows + len(parks.rows) > self.sink.park_limit:
            raise HeldInDoubt(
                f"{self.assignment.place(self.sink)}: {self.parked_rows} events are parked, "
                f"{len(parks.rows)} more have to be (the first is event {parks.rows[0].event} of "
                f"{parks.rows[0].entity!r}: {parks.rows[0].why}), and park_limit is "
                f"{self.sink.park_limit}. Resolve what `semel parked ls` shows, or give a "
                f"park_limit of {self.parked_rows + len(parks.rows)} or more, then start the query "
                "again"
            )

    def parked(self, parks: Parks) -> None:
        """Remember what was parked, and the heads and marks that it left."""
        parks.apply_to(self.heads)
        for row in parks.rows:
            if row.state.only_marks:
                at = parked_key(self.assignment.pipeline, self.sink.name, row)
                self.marks[at] = row.dump()
        self._note_parked(parks.rows)
        states = [row.state for row in parks.rows if not row.state.only_marks]
        dropped = states.count(ParkedState.SKIPPED)
        self.figures.dropped += dropped
        self.figures.parked += len(states) - dropped
        self.figures.doubted += states.count(ParkedState.HELD)
        if self.parked_rows is not None:
            self.parked_rows += len(states) - dropped

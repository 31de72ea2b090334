"""Watermarks: which events of a partition were handled in earlier minibatches.

Within a generation Spark never produces an event twice, so a watermark holds events back only after
a lost checkpoint.

Always true:
- a skipped event was delivered, parked or resolved under the same identity;
- input that does not continue where the ledger stands is never treated as new.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from semel.errors import Diverged, HeldInDoubt
from semel.events import EntityIds, Gathered, IdSet, Latest, Memory, digest
from semel.ledger import (
    FORGOT,
    JOURNAL_TABLE,
    MET,
    DamagedRow,
    Journal,
    JournalState,
    PositionMark,
    StateOperator,
    next_offset,
    read_row,
    require_reached,
    sets_in,
    starting_offsets,
    watermark_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

    from semel.delivery.assignment import Assignment
    from semel.events import EventID, Rows
    from semel.events.encoding import PreEncoded
    from semel.ledger import JournalEntry
    from semel.sinks import Sink


class Watermark(Protocol):
    """What one sink has handled of one partition before this minibatch."""

    @property
    def repeats(self) -> int:
        """How many of the rows that `handled` marked last came before in this generation."""

    def handled(self, rows: Rows) -> NDArray[np.bool_]:
        """Mark the rows that are not to be delivered again."""

    def observe(self, rows: Rows) -> None:
        """Remember rows that belong to this minibatch."""

    def mark(self) -> PositionMark | None:
        """Return the position watermark after this minibatch."""

    def entry(self) -> JournalEntry | None:
        """Return what goes into the journal with this minibatch."""


def watermark(assignment: Assignment, sink: Sink, journal: Journal) -> Watermark:
    """Return the watermark that the identity needs."""
    match assignment.identity.memory:
        case Memory.POSITIONS:
            return _ByPosition(assignment, sink)
        case Memory.HIGHEST_IDS:
            return _ByMaximum(assignment, sink, journal)
        case Memory.ALL_IDS:
            return _BySet(assignment, sink, journal)
        case Memory.NOTHING:
            return _Nothing()


class _Nothing:
    """Counter identity: a lost checkpoint is refused, so there is nothing to remember."""

    repeats = 0

    def handled(self, rows: Rows) -> NDArray[np.bool_]:
        return np.zeros(len(rows.positions), dtype=bool)

    def observe(self, rows: Rows) -> None:
        del rows

    def mark(self) -> PositionMark | None:
        return None

    def entry(self) -> JournalEntry | None:
        return None


class _ByPosition:
    """Everything up to an id, and a set above it, per source partition."""

    repeats = 0

    def __init__(self, assignment: Assignment, sink: Sink) -> None:
        self._assignment = assignment
        self._sink = sink
        self._before = assignment.opening.standing(sink.name, assignment.partition).mark
        self._last: tuple[EventID, pa.RecordBatch] | None = None
        self._looked = False

    @property
    def _place(self) -> str:
        return self._assignment.place(self._sink)

    def handled(self, rows: Rows) -> NDArray[np.bool_]:
        before = self._before
        mask = np.zeros(len(rows.positions), dtype=bool)
        if before is None or not len(rows):
            return mask
        scope = rows.scope(0)
        if not self._looked:
            self._looked = True
            self._compare_start(rows, before)
        above = mask
        if before.above:
            above = rows.contained_in(EntityIds.of({scope: before.above}))
        if before.upto is not None and not _all_after(before.upto, rows):
            mask = rows.at_most({scope: before.upto})
            self._refuse_again(rows, mask & ~above, before)
            self._compare_content(rows, mask, before)
        return mask | above

    def _refuse_again(self, rows: Rows, again: NDArray[np.bool_], before: PositionMark) -> None:
        """Refuse a row that this generation has passed: it never comes again, so this is another
        event.
        """
        if before.generation == self._assignment.opening.row.minibatch.generation and again.any():
            at = int(np.flatnonzero(again)[0])
            raise Diverged(
                f"{self._place}: event {rows.id(at)} arrived after event {before.upto}, which an "
                "earlier minibatch delivered, and no checkpoint was lost in between: it may be "
                "new, so it is not skipped. None of these rows were sent. If a stateful operator "
                "(a join, an aggregation) or a union stands between the source and semel.deliver, "
                "use given identity (entity=, event=) with a new pipeline name. If the topic was "
                "recreated, start with a new pipeline name"
            )

    def _compare_start(self, rows: Rows, before: PositionMark) -> None:
        """Refuse a gap, which looks like a re-read, unless it is accepted."""
        starts_at = self._assignment.starts_at
        first = _offset(rows.id(0)) if starts_at is None else starts_at
        wanted = next_offset(before)
        opened = self._assignment.opening.row
        fresh = before.generation < opened.minibatch.generation
        accepted = (
            opened.continues or opened.compared or opened.accepted or self._assignment.accept_gap
        )
        if fresh and not accepted and wanted is not None and first > wanted:
            partition = self._assignment.partition
            where = starting_offsets({partition: wanted}, [partition])
            raise Diverged(
                f"{self._place}: the checkpoint was lost, and Spark continues at offset {first}, "
                f"but the ledger is at {wanted - 1}: {first - wanted} events would be "
                f"skipped. Start with .option('startingOffsets', '{where}'), or pass "
                "accept_gap=True to continue without them"
            )

    def _compare_content(self, rows: Rows, mask: NDArray[np.bool_], before: PositionMark) -> None:
        """Require that the event at the watermark, if a re-read brings it again, is the same."""
        accepted = self._assignment.opening.row.continues or self._assignment.accept_gap
        if before.upto is None or before.digest is None or accepted or not mask.any():
            return
        at = int(np.flatnonzero(mask)[-1])
        if rows.id(at) == before.upto:
            found = digest(rows.batch.slice(at, 1))
            if found != before.digest:
                name = self._assignment.partition
                where = starting_offsets({name: _offset(before.upto) + 1}, [name])
                raise Diverged(
                    f"{self._place}: event {before.upto} was delivered with digest {before.digest} "
                    f"and arrived again with {found}. If the columns of the query or their order "
                    "have changed, start after what was delivered, with "
                    f".option('startingOffsets', '{where}'), or pass accept_gap=True to skip it "
                    "without comparing. If this is another source, start with a new pipeline name"
                )

    def observe(self, rows: Rows) -> None:
        if len(rows):
            at = len(rows) - 1
            self._last = (rows.id(at), rows.batch.slice(at, 1))

    def mark(self) -> PositionMark | None:
        if self._last is None:
            return self._before
        upto, content = self._last[0], digest(self._last[1])
        generation = self._assignment.opening.row.minibatch.generation
        above = IdSet.EMPTY if self._before is None else self._before.above
        above = IdSet.of(each for each in above if _parts(each) > _parts(upto))
        return PositionMark(upto, content, above, generation)

    def entry(self) -> JournalEntry | None:
        return None


class _Journaled:
    """A watermark of given ids: journaled as one delta per partition and minibatch."""

    def __init__(self, assignment: Assignment, sink: Sink, journal: Journal) -> None:
        self._assignment = assignment
        self._sink = sink
        self._journal = journal
        self._operator: StateOperator = watermark_of(sink.name)
        self._generation = assignment.opening.row.minibatch.generation
        self._serial = assignment.opening.row.serial
        self._drops = assignment.drop_repeats
        self._repeats = 0

    @property
    def repeats(self) -> int:
        return self._repeats

    @property
    def _place(self) -> str:
        return self._assignment.place(self._sink)

    def mark(self) -> PositionMark | None:
        return None


@dataclass(frozen=True, slots=True)
class Reached:
    """Of one entity: every id up to `last` is handled, and those in `above`."""

    last: EventID | None = None
    generation: int = 0
    above: IdSet = field(default=IdSet.EMPTY)

    def joined(self, ids: IdSet, left: IdSet, generation: int) -> Reached:
        """Return it with `ids` handled too, of a minibatch in which `left` are not."""
        every = list(self.above | ids)
        least = left.min() if left else None
        below = [each for each in every if least is None or _less(each, least)]
        last = self.last
        for each in below:
            last = each if last is None or _less(last, each) else last
        above = IdSet.of(each for each in every if last is None or _less(last, each))
        return Reached(last, generation, above)

    def passed(self, last: EventID, generation: int) -> Reached:
        """Return it after `last` was reached in a minibatch of `generation`."""
        above = IdSet.of(each for each in self.above if _less(last, each))
        return Reached(last, generation, above)

    def dump(self) -> list[Any]:
        """Return it as JSON."""
        last = list(self.last) if isinstance(self.last, tuple) else self.last
        plain = [last, self.generation]
        return [*plain, self.above.to_json()] if self.above else plain

    @classmethod
    def load(cls, value: list[Any]) -> Reached:
        """Read it back."""
        last = tuple(value[0]) if isinstance(value[0], list) else value[0]
        above = IdSet.from_json(value[2]) if len(value) > 2 else IdSet.EMPTY
        return cls(last, value[1], above)


def _reached(values: dict[str, list[Any]]) -> dict[str, Reached]:
    return {scope: Reached.load(value) for scope, value in values.items()}


class _ByMaximum(_Journaled):
    """Ids that only increase: a maximum per entity, with the generation in which it was reached."""

    def __init__(self, assignment: Assignment, sink: Sink, journal: Journal) -> None:
        super().__init__(assignment, sink, journal)
        self._state = journal.restore(
            self._operator, assignment.partition, before=self._serial, check=require_reached
        )
        self._rows_at = journal.place(self._operator, assignment.partition)
        values, self._above = self._state.values, dict[str, Reached]()
        if max(map(len, values.values()), default=0) > 2:
            more = {scope: value for scope, value in values.items() if len(value) > 2}
            self._above = read_row(JOURNAL_TABLE, self._rows_at, lambda: _reached(more))
        self._beyond = EntityIds.of({scope: known.above for scope, known in self._above.items()})
        self._reached = Latest()

    @cached_property
    def _greatest(self) -> int | None:
        """Return the greatest id of all that were reached, if they are integers and there is
        nothing above.
        """
        last = [value[0] for value in self._state.values.values()]
        kinds = set(map(type, last))
        if len(kinds - {type(None)}) > 1:
            raise DamagedRow(JOURNAL_TABLE, self._rows_at, "its ids are of several shapes")
        return max(last) if kinds == {int} and not self._above else None

    @cached_property
    def _same(self) -> dict[str, EventID]:
        """Return what was reached in this generation, by scope."""
        return {scope: last for scope, last, here in self._lasts() if here}

    @cached_property
    def _older(self) -> dict[str, EventID]:
        """Return what was reached in earlier generations, by scope."""
        return {scope: last for scope, last, here in self._lasts() if not here}

    def _lasts(self) -> Iterator[tuple[str, EventID, bool]]:
        for scope, (last, generation, *_) in self._state.values.items():
            if last is not None:
                known = tuple(last) if isinstance(last, list) else last
                yield scope, known, generation == self._generation

    def handled(self, rows: Rows) -> NDArray[np.bool_]:
        self._repeats = 0
        if not self._state.values or (
            self._greatest is not None and rows.all_after(self._greatest)
        ):
            return np.zeros(len(rows.positions), dtype=bool)
        before = rows.contained_in(self._beyond)
        again = rows.at_most(self._same) & ~before
        self._repeats = int(again.sum()) if self._drops else 0
        if again.any() and not self._drops:
            at = int(np.flatnonzero(again)[0])
            raise Diverged(
                f"{self._place}: event {rows.id(at)} of {rows.scope(at)!r} arrived after event "
                f"{self._same[rows.scope(at)]}, but the ids were declared increasing. Nothing of "
                "this chunk was sent. Pass drop_repeats=True to drop what comes after a greater "
                "id, or remove increasing=True, with a new pipeline name"
            )
        return rows.at_most(self._older) | before | again

    def observe(self, rows: Rows) -> None:
        self._reached.add(rows)

    def entry(self) -> JournalEntry | None:
        if not self._reached:
            return None
        delta: dict[str, Any] | PreEncoded = self._reached.written(self._generation)
        if self._above:
            delta = {
                scope: self._above.get(scope, Reached()).passed(last, self._generation).dump()
                for scope, last in self._reached.ids().items()
            }
        return self._journal.entry(
            self._operator, self._assignment.partition, self._serial, self._state, delta
        )


class _BySet(_Journaled):
    """Other ids: the sets of the minibatches that are remembered, read only after a lost
    checkpoint, or if repeats are dropped.
    """

    def __init__(self, assignment: Assignment, sink: Sink, journal: Journal) -> None:
        super().__init__(assignment, sink, journal)
        self._ids = Gathered()
        self._known = EntityIds.EMPTY
        self._forgot = False
        self._here = EntityIds.EMPTY
        self._looks = self._generation > 1 or self._drops
        if self._looks:
            state = journal.restore(self._operator, assignment.partition, before=self._serial)
            place = journal.place(self._operator, assignment.partition)
            self._known = sets_in(state, place)
            opened = assignment.opening.row
            if self._drops:
                here = {at: ids for at, ids in state.values.items() if _is_since(at, opened.first)}
                self._here = sets_in(JournalState(here), place)
            accepted = opened.accepted or assignment.accept_gap
            forgot = int(state.values.get(FORGOT, opened.began)) < opened.began
            again = self._generation > 1 and forgot and not accepted
            self._forgot = again and state.values.get(MET, 0) < opened.began

    def handled(self, rows: Rows) -> NDArray[np.bool_]:
        self._repeats = 0
        if not self._looks or not len(rows.positions):
            return np.zeros(len(rows.positions), dtype=bool)
        known = rows.contained_in(self._known)
        if self._here:
            self._repeats = int(rows.contained_in(self._here).sum())
        if self._forgot and not known.all():
            at = int(np.flatnonzero(~known)[0])
            raise HeldInDoubt(
                f"{self._place}: the checkpoint was lost, and event {rows.id(at)} of "
                f"{rows.scope(at)!r} is either new or older than the ids that are remembered; "
                "semel cannot distinguish the two. It was not sent. Start the input after what "
                "was delivered, and pass accept_gap=True"
            )
        return known

    def observe(self, rows: Rows) -> None:
        self._ids.add(rows.id_sets())

    def entry(self) -> JournalEntry | None:
        if not self._ids:
            return None
        delta: dict[str, Any] = {str(self._serial): self._ids.written()}
        return self._journal.append(self._operator, self._assignment.partition, self._serial, delta)


def _is_since(name: str, first: int) -> bool:
    """Whether a value of the journal is the set of a minibatch from serial `first` on."""
    return name.isdecimal() and int(name) >= first


def _all_after(upto: EventID, rows: Rows) -> bool:
    """Whether all rows surely come after `upto`: positions rise, so the first one decides."""
    first = rows.id(0)
    return isinstance(upto, int) and isinstance(first, int) and first > upto


def _parts(event: EventID) -> tuple[Any, ...]:
    """Return an id as a tuple that compares with another of its shape."""
    return event if isinstance(event, tuple) else (event,)


def _offset(event: EventID) -> int:
    """Return the offset in a position: the id itself, or the first of its parts."""
    offset = event[0] if isinstance(event, tuple) else event
    return int(offset)


def _less(one: EventID, other: EventID) -> bool:
    """Whether an id comes before another of the same shape."""
    return bool(cast("Any", one) < cast("Any", other))

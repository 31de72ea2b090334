"""Pruning: final rows older than `remember` are removed, so that no table grows forever.

Rows of minibatches are swept when the next but one opens, journals are compacted as they grow. This
module removes the rest: parked events that are final, and remembered id sets. The id of an event
that a person discarded or policy `skip` dropped stays (`outcomes`). A removed set leaves a mark:
after a lost checkpoint an id that is not remembered may be new, or older than the remembered ones.

Always true:
- only the run that has the pipeline prunes, because what may be removed depends on when its
  generation began;
- after a lost checkpoint it is not known when the input has been read again: ids remembered then
  stay until a checkpoint is lost once more.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from semel.events import IdSet
from semel.ledger import keys
from semel.ledger.journal import (
    FORGOT,
    FORGOTTEN,
    MET,
    JournalRow,
    load_entry,
    unsure_of,
    watermark_of,
)
from semel.ledger.journal import JOURNAL_TABLE as JOURNAL
from semel.ledger.keys import make_key, make_prefix
from semel.ledger.payloads import Row, read_row
from semel.ledger.rows import OpenRow
from semel.ledger.store.commit import Absent, Conflict, Delete, Equals, Key, Put
from semel.ledger.verbs.audited import needs_record
from semel.ledger.verbs.divergence import comes_anew
from semel.ledger.verbs.parked import read_parked
from semel.protocol import ParkedState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from semel.events import EventID, Minibatch
    from semel.ledger.client import LedgerClient
    from semel.ledger.rows import ParkedRow

OUTCOMES_TABLE = "outcomes"
REMEMBER_S = 7 * 86_400.0
ROWS_MAX = 500
"""How many parked events of one entity one commit removes."""


@dataclass(frozen=True, slots=True)
class OutcomeRow(Row):
    """Events of one entity (by position: one source partition) at one sink that a person discarded,
    or that policy `skip` did not send again.

    Kept for as long as the pipeline exists. An id gets here in the commit that removes its parked
    row, so the outcome is always recorded in one of them.
    """

    TABLE = OUTCOMES_TABLE

    scope: str
    discarded: IdSet = field(default=IdSet.EMPTY)
    skipped: IdSet = field(default=IdSet.EMPTY)

    def joined(self, rows: Iterable[ParkedRow]) -> OutcomeRow:
        """Return the row with the outcomes of these parked rows."""
        known = list(rows)
        discarded = [row.event for row in known if row.state is ParkedState.DISCARDED]
        skipped = [row.event for row in known if row.state is ParkedState.SKIPPED]
        return replace(
            self,
            discarded=self.discarded | IdSet.of(discarded),
            skipped=self.skipped | IdSet.of(skipped),
        )

    def state_of(self, event: EventID) -> ParkedState | None:
        """Return the state of an event, or None if it is not recorded here."""
        if event in self.discarded:
            return ParkedState.DISCARDED
        return ParkedState.SKIPPED if event in self.skipped else None


def outcome_key(pipeline: str, sink: str, scope: str) -> Key:
    """Return the key of one entity or source partition."""
    return make_key(OUTCOMES_TABLE, pipeline, sink, scope)


@dataclass(frozen=True)
class Pruning:
    """Removes rows older than `remember_s`. Runs on the driver, from time to time."""

    client: LedgerClient
    remember_s: float = REMEMBER_S
    audited: bool = False
    """Whether what is removed has to be in the audit log before."""

    def run(self, sinks: Iterable[str], lost_before: int = 0) -> int:
        """Remove old rows and return how many. Sets of minibatches below `lost_before` were kept
        for a re-read that another one has just replaced.
        """
        now = self.client.clock.wall()
        old = now - self.remember_s
        open_key = self.client.open_key
        text = self.client.read_one(open_key)
        opened = None if text is None else OpenRow.load(text, open_key)
        still = [] if text is None else [Equals(open_key, text)]
        removed = 0
        for sink in sinks:
            removed += self._prune_parked(sink, opened, old, still)
            name = watermark_of(sink).name
            for row_key, row_text in self.client.scan(
                JOURNAL, make_prefix(self.client.pipeline, name)
            ):
                entry = load_entry(row_text, row_key)
                kept = _re_read(opened, entry) and entry.number >= lost_before
                kept = kept or _judgeable(opened, entry.number)
                if entry.at < old and _is_set(entry) and not kept:
                    removed += self._forget(row_key, row_text, still, _generation(opened, entry))
            removed += self._prune_unsure(sink, now, still)
        return removed

    def _prune_unsure(self, sink: str, now: float, still: list[Equals]) -> int:
        """Remove records of what may have been sent before a checkpoint was lost, once re-read."""
        name = unsure_of(sink).name
        return sum(
            self._remove(row_key, text, still)
            for row_key, text in self.client.scan(JOURNAL, make_prefix(self.client.pipeline, name))
            if load_entry(text, row_key).at < now - 2 * self.remember_s
        )

    def _prune_parked(
        self, sink: str, opened: OpenRow | None, old: float, still: list[Equals]
    ) -> int:
        """Remove parked events that are final and old; keep the ids of those whose outcome is not
        in a watermark.
        """
        removed = 0
        kept: dict[str, list[tuple[Key, ParkedRow, str]]] = {}
        for item in read_parked(self.client, sink):
            row_key, row, row_text = item
            if not row.state.final or row.at >= old or _replayable(opened, row.minibatch):
                continue
            if self.audited and needs_record(row):
                continue
            if _is_kept(row):
                kept.setdefault(row.scope, []).append(item)
            else:
                removed += self._remove(row_key, row_text, still)
        for items in kept.values():
            for start in range(0, len(items), ROWS_MAX):
                removed += self._keep(sink, items[start : start + ROWS_MAX], still)
        return removed

    def _keep(self, sink: str, items: list[tuple[Key, ParkedRow, str]], still: list[Equals]) -> int:
        """Remove parked events of one scope and keep their ids, in one commit."""
        at, before, after = _with_outcomes(self.client, sink, [row for _, row, _ in items])
        required = [Absent(at) if before is None else Equals(at, before)]
        try:
            self.client.commit(
                [*still, *required, *(Equals(row_key, text) for row_key, _, text in items)],
                [Put(at, after), *(Delete(row_key) for row_key, _, _ in items)],
            )
        except Conflict:
            return 0
        return len(items)

    def _forget(self, row_key: Key, text: str, still: list[Equals], generation: int) -> int:
        """Remove a remembered set; record in its partition which generation was forgotten, and in
        which one an id was last met.
        """
        mark = Key(
            row_key.table, row_key.key.rpartition("/")[0] + "/" + keys.written_part(FORGOTTEN)
        )
        known = self.client.read_one(mark)
        found = [(mark, known), (row_key, text)]
        rows = [load_entry(each, at).state for at, each in found if each is not None]
        met = max((row[MET] for row in rows if MET in row), default=None)
        oldest = min(generation, *(int(row.get(FORGOT, generation)) for row in rows))
        state = {FORGOT: oldest} if met is None else {FORGOT: oldest, MET: met}
        entry = JournalRow(FORGOTTEN, full=False, state=state, at=0.0)
        try:
            self.client.commit(
                [*still, Equals(row_key, text)], [Delete(row_key), Put(mark, entry.dump())]
            )
        except Conflict:
            return 0
        return 1

    def _remove(self, row_key: Key, text: str, still: list[Equals]) -> int:
        try:
            self.client.commit([*still, Equals(row_key, text)], [Delete(row_key)])
        except Conflict:
            return 0
        return 1


def _re_read(opened: OpenRow | None, entry: JournalRow) -> bool:
    """Whether a set is from before the last lost checkpoint: its events may arrive again."""
    if opened is None or opened.began == 1:
        return False
    return bool(entry.number < opened.first if opened.first else entry.at < opened.since)


def _judgeable(opened: OpenRow | None, serial: int) -> bool:
    """Whether a minibatch runs again and may be judged: its set records what it delivered."""
    if opened is None or (opened.complete and opened.judged is None):
        return False
    again = opened.again or opened.continues or opened.judged is not None
    return again and serial >= opened.reached()[1] - (2 if opened.continues else 1)


def _generation(opened: OpenRow | None, entry: JournalRow) -> int:
    """Return the generation of a set: the current one, or one before the last lost checkpoint."""
    began = 1 if opened is None else opened.began
    return began - 1 if _re_read(opened, entry) else began


def _replayable(opened: OpenRow | None, minibatch: Minibatch) -> bool:
    """Whether a minibatch is not swept yet: its parked events may arrive again."""
    if opened is None or minibatch.generation != opened.minibatch.generation:
        return False
    return minibatch.batch >= opened.reached()[0] - 1


def _is_set(row: JournalRow) -> bool:
    """Whether a journal row is a remembered set of one minibatch: its only name is its number,
    beside the mark of the generation that last met a remembered id.
    """
    state = row.state
    if set(state) - {MET} != {str(row.number)}:
        return False
    # An entity may be named like a number too; but for increasing ids a list is kept, not sets.
    return isinstance(state[str(row.number)], dict)


def _is_kept(row: ParkedRow) -> bool:
    """Whether the outcome of a parked event is kept after pruning."""
    if comes_anew(row):
        return False
    return row.state in (ParkedState.DISCARDED, ParkedState.SKIPPED)


def _with_outcomes(
    client: LedgerClient, sink: str, rows: list[ParkedRow]
) -> tuple[Key, str | None, str]:
    """Return the key of the row for outcomes of parked events of one scope, its recorded text, and
    its text with them.
    """
    scope = rows[0].scope
    at = outcome_key(client.pipeline, sink, scope)
    text = client.read_one(at)
    before = OutcomeRow(scope) if text is None else OutcomeRow.load(text, at)
    return at, text, read_row(OUTCOMES_TABLE, at, lambda: before.joined(rows).dump())

"""Pruning: what is final and older than `remember` goes; every table of the ledger stops growing.

Rows of minibatches are swept when the next but one opens, journals are compacted as they grow. What
is left for here: parked events that are final, and remembered id sets. Of an event that a person
discarded or policy `skip` dropped the id stays (`outcomes`). Where a set goes, a mark stays: after
a lost checkpoint an id that is not remembered may be new, or older than what is remembered.

Always true:
- only the run that has the pipeline prunes, because what may go depends on when its generation
  began;
- after a lost checkpoint nobody can tell when the input was read again: what was remembered then
  stays until a checkpoint is lost once more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semel.ledger import keys, payloads
from semel.ledger.journal import FORGOT, FORGOTTEN, MET, loaded, unsure_of, watermark_of
from semel.ledger.journal import TABLE as JOURNAL
from semel.ledger.keys import OPEN, prefix
from semel.ledger.rows import OpenRow
from semel.ledger.store.commit import Absent, Conflict, Delete, Equals, Key, Put
from semel.ledger.verbs.outcomes import is_kept, with_outcomes
from semel.ledger.verbs.parked import read_parked

if TYPE_CHECKING:
    from collections.abc import Iterable

    from semel.events import Minibatch
    from semel.ledger.client import LedgerClient
    from semel.ledger.rows import ParkedRow

REMEMBER_S = 7 * 86_400.0
ROWS_MAX = 500
"""How many parked events of one entity are removed with one commit."""


@dataclass(frozen=True)
class Pruning:
    """Removes what is older than `remember_s`. Runs on the driver, now and then."""

    client: LedgerClient
    remember_s: float = REMEMBER_S

    def run(self, sinks: Iterable[str], lost_before: int = 0) -> int:
        """Remove old rows; say how many. Sets of minibatches below `lost_before` were kept for a
        re-read that another one has replaced just now.
        """
        now = self.client.clock.wall()
        old = now - self.remember_s
        open_key = keys.key(OPEN, self.client.pipeline)
        text = self.client.read_one(open_key)
        opened = None if text is None else OpenRow.load(text, open_key)
        still = [] if text is None else [Equals(open_key, text)]
        removed = 0
        for sink in sinks:
            removed += self._prune_parked(sink, opened, old, still)
            name = watermark_of(sink).name
            for row_key, row_text in self.client.scan(JOURNAL, prefix(self.client.pipeline, name)):
                entry = loaded(row_text, row_key)
                kept = _re_read(opened, entry) and entry["number"] >= lost_before
                kept = kept or _judgeable(opened, entry["number"])
                if entry["at"] < old and _is_set(entry) and not kept:
                    removed += self._forget(row_key, row_text, still, _generation(opened, entry))
            removed += self._prune_unsure(sink, now, still)
        return removed

    def _prune_unsure(self, sink: str, now: float, still: list[Equals]) -> int:
        """Remove what may have been sent before a checkpoint was lost; by then it came again."""
        name = unsure_of(sink).name
        return sum(
            self._remove(row_key, text, still)
            for row_key, text in self.client.scan(JOURNAL, prefix(self.client.pipeline, name))
            if loaded(text, row_key)["at"] < now - 2 * self.remember_s
        )

    def _prune_parked(
        self, sink: str, opened: OpenRow | None, old: float, still: list[Equals]
    ) -> int:
        """Remove parked events that are final and old; keep the ids of those whose outcome a
        watermark does not tell.
        """
        removed = 0
        kept: dict[str, list[tuple[Key, ParkedRow, str]]] = {}
        for item in read_parked(self.client, sink):
            row_key, row, row_text = item
            if not row.state.final or row.at >= old or _replayable(opened, row.minibatch):
                continue
            if is_kept(row):
                kept.setdefault(row.scope, []).append(item)
            else:
                removed += self._remove(row_key, row_text, still)
        for items in kept.values():
            for start in range(0, len(items), ROWS_MAX):
                removed += self._keep(sink, items[start : start + ROWS_MAX], still)
        return removed

    def _keep(self, sink: str, items: list[tuple[Key, ParkedRow, str]], still: list[Equals]) -> int:
        """Remove parked events of one scope, and put their ids where they stay, in one commit."""
        at, before, after = with_outcomes(self.client, sink, [row for _, row, _ in items])
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
        """Remove a remembered set; say in its partition of which generation something was
        forgotten, and still in which one an id was met.
        """
        mark = Key(row_key.table, row_key.key.rpartition("/")[0] + "/" + keys.part(FORGOTTEN))
        known = self.client.read_one(mark)
        found = [(mark, known), (row_key, text)]
        rows = [loaded(each, at)["state"] for at, each in found if each is not None]
        met = max((row[MET] for row in rows if MET in row), default=None)
        oldest = min(generation, *(int(row.get(FORGOT, generation)) for row in rows))
        state = {FORGOT: oldest} if met is None else {FORGOT: oldest, MET: met}
        entry = {"number": FORGOTTEN, "full": False, "state": state, "at": 0.0}
        try:
            self.client.commit(
                [*still, Equals(row_key, text)], [Delete(row_key), Put(mark, payloads.dump(entry))]
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


def _re_read(opened: OpenRow | None, entry: dict[str, Any]) -> bool:
    """Whether a set is of before the last lost checkpoint, so that its events may come again."""
    if opened is None or opened.began == 1:
        return False
    return bool(entry["number"] < opened.first if opened.first else entry["at"] < opened.since)


def _judgeable(opened: OpenRow | None, serial: int) -> bool:
    """Whether a minibatch is run again and may be judged: its set says what it delivered."""
    if opened is None or (opened.complete and opened.judged is None):
        return False
    again = opened.again or opened.continues or opened.judged is not None
    return again and serial >= opened.reached()[1] - (2 if opened.continues else 1)


def _generation(opened: OpenRow | None, entry: dict[str, Any]) -> int:
    """Give the generation of a set: the one in force, or one before the last lost checkpoint."""
    began = 1 if opened is None else opened.began
    return began - 1 if _re_read(opened, entry) else began


def _replayable(opened: OpenRow | None, minibatch: Minibatch) -> bool:
    """Whether a minibatch is not swept yet: what is parked of it may be met again."""
    if opened is None or minibatch.generation != opened.minibatch.generation:
        return False
    return minibatch.batch >= opened.reached()[0] - 1


def _is_set(row: dict[str, object]) -> bool:
    """Whether a journal row is a remembered set of one minibatch: its only name is its number,
    beside the mark of the generation that has met what is known.
    """
    state = row["state"]
    if not isinstance(state, dict) or set(state) - {MET} != {str(row["number"])}:
        return False
    # An entity may be called like a number too; but of an increasing id a list is kept, not sets.
    return isinstance(state[str(row["number"])], dict)

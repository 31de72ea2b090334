"""Pruning: what is final and older than `remember` goes; every table of the ledger stops growing.

Rows of minibatches are swept when the next but one opens, journals are compacted as they grow. What
is left for here: parked events that are final, and remembered id sets. Where a set goes, a mark
stays: after a lost checkpoint an id that is not remembered may be new, or older than what is
remembered. Always true: only the run that has the pipeline prunes, because what may go depends on
when its generation began.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from semel.ledger import keys, payloads
from semel.ledger.journal import FORGOT, FORGOTTEN, MET, watermark_of
from semel.ledger.journal import TABLE as JOURNAL
from semel.ledger.keys import OPEN, prefix
from semel.ledger.parked import read_parked
from semel.ledger.rows import OpenRow
from semel.ledger.store import Conflict, Delete, Equals, Key, Put

if TYPE_CHECKING:
    from collections.abc import Iterable

    from semel.events import Minibatch
    from semel.ledger.scribe import Scribe

REMEMBER_S = 7 * 86_400.0


@dataclass(frozen=True)
class Pruning:
    """Removes what is older than `remember_s`. Runs on the driver, now and then."""

    scribe: Scribe
    remember_s: float = REMEMBER_S

    def run(self, sinks: Iterable[str]) -> int:
        """Remove old rows; say how many."""
        now = self.scribe.clock.wall()
        old = now - self.remember_s
        open_key = keys.key(OPEN, self.scribe.pipeline)
        text = self.scribe.read_one(open_key)
        opened = None if text is None else OpenRow.load(text)
        still = [] if text is None else [Equals(open_key, text)]
        removed = 0
        for sink in sinks:
            for row_key, row, row_text in read_parked(self.scribe, sink):
                if row.state.final and row.at < old and not _replayable(opened, row.minibatch):
                    removed += self._remove(row_key, row_text, still)
            name = watermark_of(sink).name
            for row_key, row_text in self.scribe.scan(JOURNAL, prefix(self.scribe.pipeline, name)):
                entry = payloads.load(row_text)
                if entry["at"] < old and _is_set(entry) and not self._re_read(opened, entry["at"]):
                    removed += self._forget(row_key, row_text, still)
        return removed

    def _re_read(self, opened: OpenRow | None, at: float) -> bool:
        """Whether a set is of an older generation, which may still be read again."""
        now = self.scribe.clock.wall()
        if opened is None or at >= opened.since or at < now - 2 * self.remember_s:
            return False
        return opened.since > now - self.remember_s

    def _forget(self, row_key: Key, text: str, still: list[Equals]) -> int:
        """Remove a remembered set; say in its partition that something was forgotten, and still in
        which generation an id was met.
        """
        mark = Key(row_key.table, row_key.key.rpartition("/")[0] + "/" + keys.part(FORGOTTEN))
        known = self.scribe.read_one(mark)
        rows = [payloads.load(each)["state"] for each in (known, text) if each is not None]
        met = max((row[MET] for row in rows if MET in row), default=None)
        state = {FORGOT: True} if met is None else {FORGOT: True, MET: met}
        entry = {"number": FORGOTTEN, "full": False, "state": state, "at": 0.0}
        try:
            self.scribe.commit(
                [*still, Equals(row_key, text)], [Delete(row_key), Put(mark, payloads.dump(entry))]
            )
        except Conflict:
            return 0
        return 1

    def _remove(self, row_key: Key, text: str, still: list[Equals]) -> int:
        try:
            self.scribe.commit([*still, Equals(row_key, text)], [Delete(row_key)])
        except Conflict:
            return 0
        return 1


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

"""Ids of events that were discarded or skipped, kept for as long as the pipeline exists.

A parked row has time and reason until it is pruned; then only the id stays. Always true: an id goes
into a set in the commit that removes its row, so the outcome is always recorded in one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from semel.events import IdSet
from semel.ledger import payloads
from semel.ledger.damage import Fields, decode_row, read_row
from semel.ledger.keys import make_key
from semel.ledger.verbs.divergence import comes_anew
from semel.protocol import ParkedState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from semel.events import EventID
    from semel.ledger.client import LedgerClient
    from semel.ledger.rows import ParkedRow
    from semel.ledger.store.commit import Key

OUTCOMES_TABLE = "outcomes"


@dataclass(frozen=True, slots=True)
class OutcomeRow:
    """Events of one entity (by position: one source partition) at one sink that a person discarded,
    or that policy `skip` did not send again.
    """

    scope: str
    discarded: IdSet = field(default=IdSet.EMPTY)
    skipped: IdSet = field(default=IdSet.EMPTY)

    def dump(self) -> str:
        """Return the payload."""
        return payloads.dump(
            {
                "scope": self.scope,
                "discarded": self.discarded.to_json(),
                "skipped": self.skipped.to_json(),
            }
        )

    @classmethod
    def load(cls, text: str, at: Key | None = None) -> OutcomeRow:
        """Read it back."""
        return decode_row(OUTCOMES_TABLE, at, text, cls._of)

    @classmethod
    def _of(cls, payload: dict[str, Any]) -> OutcomeRow:
        row = Fields(payload)
        discarded, skipped = (IdSet.from_json(row.take(each)) for each in ("discarded", "skipped"))
        return cls(row.text("scope"), discarded, skipped)

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


def is_kept(row: ParkedRow) -> bool:
    """Whether the outcome of a parked event is kept after pruning."""
    if comes_anew(row):
        return False
    return row.state in (ParkedState.DISCARDED, ParkedState.SKIPPED)


def with_outcomes(
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

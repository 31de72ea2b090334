"""Parked events: the list, one event with its payload, and which event a typed name means.

Always true:
- every printed name finds its own event again, whatever characters are in it;
- a name that fits several events finds none of them, and the error lists them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError
from semel.ledger import (
    PARKED_TABLE,
    SENT_AGAIN,
    DamagedRow,
    decode_row,
    is_key_text,
    key_text,
    split_key,
)
from semel.ledger.store import Key
from semel.operate.event_names import fits, fits_damaged, name_of, short_names
from semel.operate.times import utc_text
from semel.protocol import ParkedState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from semel.ledger import Ledger, ParkedRow

_SHOWN = 5

_MEANING = {
    ParkedState.HELD: "in doubt; a person decides",
    ParkedState.REJECTED: "nothing arrived, and nothing will unless it changes; a person decides",
    ParkedState.WAITING: "behind another event of its entity",
    ParkedState.RESEND: "to be sent again; no run has taken it yet",
    ParkedState.SENDING: "a run took it and may be sending it",
    ParkedState.DELIVERED: "sent again, and the destination took it",
    ParkedState.DISCARDED: "a person discarded it",
    ParkedState.SKIPPED: "skipped by policy: it was in doubt, and is not sent again",
    ParkedState.RESENT: "was in doubt, and policy resend sent it again",
    ParkedState.LATE: "a replaced attempt's call ended late; it may have arrived twice",
}

_DOUBT = {
    ParkedState.DELIVERED: "was in doubt",
    ParkedState.RESENT: "may have arrived twice",
    ParkedState.LATE: "may have arrived twice",
}


@dataclass(frozen=True, slots=True)
class ParkedEvent:
    """A parked event with its names.

    Attributes:
        handle: the full name, PIPELINE/SINK/ENTITY/EVENT.
        short: the short name, `@3f9a2c`.
        behind: how many later events of its entity wait for it.
    """

    pipeline: str
    sink: str
    key: Key
    row: ParkedRow
    handle: str
    short: str
    behind: int = 0

    @property
    def meaning(self) -> str:
        """What its state means, in words."""
        row = self.row
        if row.state is ParkedState.DELIVERED and row.why != SENT_AGAIN:
            return "a person recorded that it arrived" if row.by else "it arrived"
        return _MEANING[row.state]

    @property
    def doubt(self) -> str:
        """What `row.doubted` means in its state: `was in doubt` once it is resolved."""
        return _DOUBT.get(self.row.state, "may have arrived")

    @property
    def blocks(self) -> bool:
        """Whether later events of its entity wait for it."""
        return self.row.blocks and not self.row.state.final

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object, without its payload."""
        row = self.row
        return {
            "event": self.handle,
            "short": self.short,
            "pipeline": self.pipeline,
            "sink": self.sink,
            "entity": row.entity,
            "id": row.event,
            "minibatch": str(row.minibatch),
            "state": row.state.value,
            "why": row.why,
            "since": utc_text(row.at),
            "resends": row.attempts,
            "behind": self.behind,
        }


@dataclass(frozen=True, slots=True)
class ParkedEvents:
    """Parked events in the order of their input, and the rows that cannot be read.

    Attributes:
        next_after: the name with which a list goes on, if there are more events.
    """

    events: list[ParkedEvent] = field(default_factory=list)
    damaged: list[DamagedRow] = field(default_factory=list)
    next_after: str | None = None

    def find(self, typed: str) -> ParkedEvent:
        """Return the event that a typed name means.

        Raises `ConfigurationError` when no event or several have this name, `LedgerError` when the
        row of the event cannot be read.
        """
        for row in self.damaged:
            if row.key is not None and fits_damaged(Key(row.table, row.key), typed):
                raise row
        exactly = [each for each in self.events if each.handle == typed]
        found = exactly or [
            each for each in self.events if fits(each.key, each.row.minibatch, typed)
        ]
        waiting = [each for each in found if not each.row.state.final]
        if len(found) > 1 and len(waiting) == 1:
            found = waiting
        if not found:
            raise ConfigurationError(
                f"there is no parked event {typed!r}; `semel parked ls --all` lists them"
            )
        if len(found) > 1:
            names = ", ".join(f"{each.handle} ({each.short})" for each in found[:_SHOWN])
            more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            raise ConfigurationError(
                f"{typed!r} fits {len(found)} parked events; name one of: {names}{more}"
            )
        return found[0]

    def to_json(self) -> list[dict[str, Any]]:
        """Return it as a JSON list; damaged rows are at its end."""
        damaged = [{"key": row.key, "state": "damaged", "why": row.what} for row in self.damaged]
        return [*(each.to_json() for each in self.events), *damaged]


def read_parked_events(ledger: Ledger) -> ParkedEvents:
    """Return every parked event of a ledger, by pipeline and sink, in the order of their input."""
    rows, damaged = ledger.every_parked()
    found: list[tuple[Key, ParkedRow, str]] = []
    for at, row in rows:
        try:
            found.append((at, row, name_of(at)))
        except (ValueError, IndexError):  # the name is made from the key
            damaged.append(DamagedRow(at.table, at.key, "its key is not that of a parked event"))
    often = Counter(name for _, _, name in found)
    short = short_names([at for at, _, _ in found])
    behind = _count_behind([(at, row) for at, row, _ in found])
    events = [
        ParkedEvent(
            pipeline=text_in(at, 0),
            sink=text_in(at, 1),
            key=at,
            row=row,
            handle=name if often[name] == 1 else f"{name}@{row.minibatch}",
            short=short[at],
            behind=behind[at],
        )
        for at, row, name in found
    ]
    return ParkedEvents(events, damaged)


def read_parked_event(ledger: Ledger, typed: str) -> tuple[ParkedEvent, dict[str, Any]]:
    """Return the parked event that a typed name means, and its whole row as a JSON object.

    Raises `ConfigurationError` when no event or several have this name, `LedgerError` when its row
    cannot be read.
    """
    found = read_parked_events(ledger).find(typed)
    row = decode_row(PARKED_TABLE, found.key, ledger.store.read([found.key])[found.key], dict)
    return found, row


def text_in(at: Key, place: int) -> str:
    """Return the pipeline or the sink in a key; of a very long name the part that the key has."""
    written = split_key(at.key)[place]
    return key_text(written) if is_key_text(written) else written


def _count_behind(rows: Sequence[tuple[Key, ParkedRow]]) -> dict[Key, int]:
    """Count for each event how many of its entity wait for it."""
    entities: dict[tuple[str, ...], list[tuple[Key, ParkedRow]]] = {}
    for at, row in rows:
        entity = (*split_key(at.key)[:2], row.entity, row.scope)
        entities.setdefault(entity, []).append((at, row))
    behind: dict[Key, int] = {}
    for members in entities.values():
        waiting = 0
        for at, row in reversed(members):  # they are in the order of their input
            behind[at] = waiting if row.blocks and not row.state.final else 0
            waiting += row.state is ParkedState.WAITING
    return behind

"""The story of a world: its steps as text.

A step is kept as plain values and formatted only when it is read, because most stories are never
read. The same seed gives the same story, byte for byte.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from semel.ledger import load_payload
from semel.ledger.store import Delete, Put, Sweep

if TYPE_CHECKING:
    from collections.abc import Sequence

    from semel.ledger.store import Update

_SHOWN = ("state", "attempt", "run", "batch", "complete", "number", "chunks", "event")


@dataclass(slots=True)
class Story:
    """The steps of a world, in order."""

    steps: list[tuple[float, str, tuple[Any, ...], str]] = field(default_factory=list)
    began: float | None = None

    def note(self, now: float, who: str, what: tuple[Any, ...], outcome: str = "") -> None:
        """Keep one step."""
        self.steps.append((now, who, what, outcome))

    def lines(self) -> list[str]:
        """Return the story as lines."""
        if not self.steps:
            return []
        began = self.steps[0][0]
        width = len(str(len(self.steps)))
        return [
            f"{number:>{width}}  {now - began:9.2f} s  {who}: {_words(what)}"
            + (f" - {outcome}" if outcome else "")
            for number, (now, who, what, outcome) in enumerate(self.steps, 1)
        ]


def _words(what: Sequence[Any]) -> str:
    return " ".join(
        ", ".join(_update(update) for update in part) or "nothing"
        if isinstance(part, list)
        else str(part)
        for part in what
    )


def _update(update: Update) -> str:
    match update:
        case Put(key, payload):
            row = load_payload(payload)
            shown = [f"{name} {_plain(row[name])}" for name in _SHOWN if row.get(name) is not None]
            return f"{key.table} {_place(key.key)} ({', '.join(shown)})"
        case Delete(key):
            return f"delete {key.table} {_place(key.key)}"
        case Sweep(table, prefix):
            return f"sweep {table} {_place(prefix)}"


def _place(key: str) -> str:
    """Return a key without the name of the pipeline, which is the same everywhere."""
    return key.partition("/")[2] or key


def _plain(value: object) -> str:
    if isinstance(value, list) and len(value) == 2 and all(isinstance(v, int) for v in value):
        return f"{value[0]}.{value[1]}"
    return str(value).lower() if isinstance(value, bool) else str(value)

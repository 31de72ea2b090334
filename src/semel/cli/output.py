"""How commands show what they found: a table for a person, JSON for a machine.

Always true:
- nothing that came from outside can move the cursor or colour the screen: it is shown as text;
- no cell is cut, because what is printed is typed again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from semel.errors import printable
from semel.runtime import SystemClock

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

_WIDEST = 100_000
_SHORT = 60


def show_json(value: Any) -> None:
    """Print a value as JSON, for machines."""
    print(json.dumps(value, indent=2))


def show_table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], right: Iterable[str] = ()
) -> None:
    """Print rows under headings; those named in `right` are numbers."""
    numbers = set(right)
    table = Table(box=None, pad_edge=False)
    for name in headings:
        table.add_column(name, justify="right" if name in numbers else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    console = Console(file=sys.stdout, highlight=False)
    widest = console.options.update(max_width=_WIDEST, width=_WIDEST)
    console.width = max(console.width, console.measure(table, options=widest).maximum)
    console.print(table)


def show_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """Print names and what they are, one on a line."""
    known = list(pairs)
    width = max(len(name) for name, _ in known) + 2
    for name, value in known:
        print(f"{name:<{width}}{plain(value)}")


def plain(value: object) -> str:
    """Give a value as printable text; what is not there is a dash."""
    return "-" if value is None else printable(str(value))


def shortened(text: str) -> str:
    """Give the beginning of a long text, for a table."""
    return text if len(text) <= _SHORT else text[: _SHORT - 3] + "..."


def when(at: float | None) -> str | None:
    """Give a moment as people and machines write it, in UTC."""
    if at is None:
        return None
    moment = datetime.fromtimestamp(at, UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def age_s(at: float) -> float:
    """Give how long ago a moment was, by the clock of this machine."""
    return max(0.0, SystemClock().wall() - at)


def ago(seconds: float) -> str:
    """Write an age for people."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"

"""How commands print answers: a table for people, JSON for programs.

Always true:
- text from outside cannot move the cursor or color the screen: control characters are escaped;
- no cell is cut off, because people copy what is printed into the next command.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from semel.errors import printable
from semel.runtime import SystemClock

_WIDEST = 100_000
_SHORT = 60


def show_json(value: Any) -> None:
    """Print a value as JSON."""
    from semel.events.encoding import readable_json

    print(readable_json(value))


def show_table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], right: Iterable[str] = ()
) -> None:
    """Print rows under headings; the columns named in `right` are numbers."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

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
    """Print names and values, one pair on a line."""
    known = list(pairs)
    width = max(len(name) for name, _ in known) + 2
    for name, value in known:
        print(f"{name:<{width}}{plain(value)}")


def plain(value: object) -> str:
    """Give a value as printable text; what is not there is a dash."""
    return "-" if value is None else printable(str(value))


def shorten(text: str) -> str:
    """Return the beginning of a long text, for a table."""
    return text if len(text) <= _SHORT else text[: _SHORT - 3] + "..."


def ago(seconds: float) -> str:
    """Return an age in words: `4 s ago`."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


class ProgressLine:
    """A line on standard error while a long command works: at most one every `EVERY_S`, and none
    for a command that ends before the first.
    """

    EVERY_S = 2.0

    def __init__(self, what: str) -> None:
        self._what = what
        self._clock = SystemClock()
        self._next = self._clock.monotonic() + self.EVERY_S

    def show(self, count: int, more: str = "") -> None:
        """Print how far it is, if the last line is old enough."""
        if self._clock.monotonic() >= self._next:
            self._next = self._clock.monotonic() + self.EVERY_S
            print(f"{count} {self._what}{f', {more}' if more else ''}", file=sys.stderr)

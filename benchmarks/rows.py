"""A row of a benchmark's table: ours, the peer's, their ratio, and how far it spread."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison. `ratio` is the median of the pairs, `spread` their least and greatest."""

    what: str
    semel: float
    peer: float
    ratio: float
    spread: tuple[float, float]
    unit: str

    def to_json(self) -> dict[str, Any]:
        """Give it as JSON."""
        return {
            "what": self.what,
            "semel": self.semel,
            "peer": self.peer,
            "ratio": self.ratio,
            "spread": list(self.spread),
            "unit": self.unit,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Comparison:
        """Read it back."""
        return cls(**{**value, "spread": tuple(value["spread"])})


def compared(what: str, pairs: Sequence[tuple[float, float]], unit: str) -> Comparison:
    """Compare pairs of (ours, the peer's) that were measured alternately."""
    ratios = [ours / theirs for ours, theirs in pairs]
    return Comparison(
        what,
        statistics.median(ours for ours, _ in pairs),
        statistics.median(theirs for _, theirs in pairs),
        statistics.median(ratios),
        (min(ratios), max(ratios)),
        unit,
    )


def table(title: str, rows: Sequence[Comparison]) -> Table:
    """Show rows to a person."""
    made = Table(title=title, title_justify="left")
    made.add_column("what")
    for name in ("semel", "peer", "unit", "ratio", "spread"):
        made.add_column(name, justify="left" if name == "unit" else "right")
    for row in rows:
        low, high = row.spread
        made.add_row(
            row.what,
            f"{row.semel:,.4g}" if row.semel < 1000 else f"{row.semel:,.0f}",
            f"{row.peer:,.4g}" if row.peer < 1000 else f"{row.peer:,.0f}",
            row.unit,
            f"{row.ratio:.2f}",
            f"{low:.2f} - {high:.2f}",
        )
    return made

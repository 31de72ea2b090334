"""What the benchmarks are measured against: the goals of the project, a line each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.rows import Comparison


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal of the rows of a benchmark whose `what` begins so: a ratio, or a figure of semel's."""

    bench: str
    begins: str
    ratio: float | None = None
    figure: float | None = None

    def factor(self, row: Comparison) -> float:
        """How many times as fast as the peer semel would have to be in this row."""
        if self.figure is None:
            return self.ratio or 1.0
        return times(row.unit, self.figure / row.peer)

    def told(self, row: Comparison) -> str:
        """The goal as a table has it."""
        if self.figure is None:
            return f"{self.ratio:g}"
        return f"{self.figure:,.0f} {row.unit}"


GOALS = (
    Goal("overhead", "entity buckets and order, increasing ids; peer only shuffles", ratio=0.90),
    Goal("overhead", "position", ratio=0.95),
    Goal("overhead", "entity buckets and order", ratio=0.95),
    Goal("postgres", "append; peer: Spark's JDBC", ratio=3.0),
    Goal("postgres", "balance = balance + x; peer: dedup table, then", ratio=10.0),
    Goal("postgres", "balance = balance + x; peer: both as one statement per row", ratio=10.0),
    Goal("http", "ordered calls, Idempotency-Key (REPEATABLE); peer: DBOS", ratio=10.0),
    Goal("http", "ordered calls, windows of 1,000 (OPAQUE); peer: DBOS", ratio=10.0),
    Goal("http", "ordered calls, Idempotency-Key (REPEATABLE); peer: aiohttp", figure=10_000.0),
    Goal("http", "ordered calls, windows of 1,000 (OPAQUE); peer: aiohttp", figure=8_000.0),
    Goal("files", "Parquet", ratio=0.8),
    Goal("kafka", "copy, no headers; peer: Flink", ratio=1.5),
    Goal("kafka", "copy, semel's four headers", ratio=1.5),
    Goal("kafka", "until visible, median", figure=200.0),
    Goal("sources", "semel.kafka", ratio=0.8),
)
"""The first that fits a row is the row's goal."""


def goal_of(bench: str, row: Comparison) -> Goal | None:
    """The goal of a row; None where there is none."""
    fits = (goal for goal in GOALS if goal.bench == bench and row.what.startswith(goal.begins))
    return next(fits, None)


def times(unit: str, ratio: float) -> float:
    """A ratio so that more is better: where the unit is a time, less of it is."""
    return 1 / ratio if unit == "ms" else ratio

"""Charts of the newest minibatches: what an inline SVG draws, and what it says in words."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from semel.ledger import MinibatchFigures

WIDTH, HEIGHT = 600.0, 100.0
_GAP = 0.2
_LEAST = 1.5
"""The least height of a bar and the least width of a minibatch in the timeline: all are visible."""


@dataclass(frozen=True, slots=True)
class ChartBar:
    """One rectangle, with what it says when it is pointed at, and its tone: a class of the CSS."""

    x: float
    y: float
    width: float
    height: float
    label: str
    tone: str = "plain"


@dataclass(frozen=True, slots=True)
class Chart:
    """Rectangles in a box of `WIDTH` x `HEIGHT`.

    Attributes:
        summary: what a person sees at a glance, in words.
        top: the value at the upper edge, with its unit.
        line_y: where a limit is drawn; None without one.
    """

    bars: tuple[ChartBar, ...]
    summary: str
    top: str
    line_y: float | None = None
    begins_at: float | None = None
    ends_at: float | None = None


def throughput_chart(newest: Sequence[MinibatchFigures]) -> Chart:
    """Return how many events per second each minibatch delivered, the pause before it included."""
    rates = [
        each.delivered / max(each.at - before.at, each.seconds, 0.001)
        for before, each in pairwise(newest)
    ]
    return _bars(newest[1:], rates, lambda rate: f"{rate:,.0f} events/s", "Throughput", None)


def latency_chart(newest: Sequence[MinibatchFigures], limit_s: float | None) -> Chart:
    """Return how long each minibatch took, and the latency that is required."""
    return _bars(newest, [each.seconds for each in newest], _seconds, "Time", limit_s)


def timeline_chart(newest: Sequence[MinibatchFigures]) -> Chart:
    """Return when each minibatch was delivered: where it began and ended in time."""
    if not newest:
        return Chart((), "no minibatch is complete yet", "")
    begin, end = newest[0].at - newest[0].seconds, newest[-1].at
    scale = WIDTH / max(end - begin, 0.001)
    bars = []
    for each in newest:
        width = max(each.seconds * scale, _LEAST)
        x = min(max((each.at - each.seconds - begin) * scale, 0.0), WIDTH - width)
        bars.append(
            ChartBar(x, 0, width, HEIGHT, _label(each, _seconds(each.seconds)), _tone(each))
        )
    parked = sum(each.parked for each in newest)
    repeats = sum(each.suppressed + each.skipped for each in newest)
    summary = (
        f"{len(newest)} minibatches in {_seconds(end - begin)}: {parked:,} events parked, "
        f"{repeats:,} repeats suppressed"
    )
    return Chart(tuple(bars), summary, "", None, begin, end)


def _bars(
    newest: Sequence[MinibatchFigures],
    values: Sequence[float],
    text: Callable[[float], str],
    name: str,
    limit: float | None,
) -> Chart:
    if not newest:
        return Chart((), "no minibatch is complete yet", "")
    top = max([*values, limit or 0.0, 1e-9])
    step = WIDTH / max(len(newest), 20)
    bars = []
    for number, (each, value) in enumerate(zip(newest, values, strict=True)):
        height = max(value / top * HEIGHT, _LEAST)
        over = limit is not None and value > limit
        tone = "over" if over else _tone(each)
        x, width = number * step, step * (1 - _GAP)
        bars.append(ChartBar(x, HEIGHT - height, width, height, _label(each, text(value)), tone))
    summary = (
        f"{name} of the newest {len(newest)}: median {text(median(values))}, "
        f"highest {text(max(values))}, newest {text(values[-1])}"
    )
    if limit is not None:
        summary += f"; {_seconds(limit)} are required"
    line_y = None if limit is None else HEIGHT - limit / top * HEIGHT
    return Chart(tuple(bars), summary, text(top), line_y)


def _label(each: MinibatchFigures, text: str) -> str:
    parts = [f"{each.minibatch}: {text}", f"{each.delivered:,} delivered"]
    repeats = each.suppressed + each.skipped
    parts += [f"{repeats:,} repeats suppressed"] if repeats else []
    parts += [f"{each.parked:,} parked"] if each.parked else []
    return ", ".join(parts)


def _tone(each: MinibatchFigures) -> str:
    if each.parked:
        return "parked"
    return "repeats" if each.suppressed or each.skipped else "plain"


def _seconds(value: float) -> str:
    return (
        f"{value * 1000:.0f} ms"
        if value < 1
        else f"{value:,.3g} s"
        if value < 1000
        else f"{value:,.0f} s"
    )

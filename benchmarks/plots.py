"""Draws the rows of benchmarks as bars, and curves as lines, in SVG.

`python -m benchmarks.plots RESULT.json ... --into docs/img`. Every RESULT.json is a kept result, or
what `python -m benchmarks NAME --json` printed; the picture is NAME.svg, and the lines of the table
are printed. Colours are chosen to be read on white and on black.
"""

from __future__ import annotations

import argparse
import json
import math
import textwrap
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.goals import goal_of, times
from benchmarks.rows import Comparison

if TYPE_CHECKING:
    from collections.abc import Sequence

TITLES = {
    "overhead": "semel on Spark: what the promise costs",
    "postgres": "PostgreSQL",
    "http": "HTTP, a service of 100 ms, one process",
    "redis": "Redis",
    "kafka": "Kafka to Kafka",
    "files": "Parquet files",
}
WIDTH, LEFT, RIGHT, TOP, BOTTOM = 860, 330, 200, 62, 46
BAR, GAP, LINE = 20, 22, 15
TEXT, FAINT, OURS, LOSES, GOAL = "#7d8590", "#8b949e", "#3b82c4", "#c77b3b", "#2f9e6e"
PANEL, PANEL_LEFT, PANEL_TOP, PANEL_FOOT = 210, 70, 50, 34
LABEL_CHARACTERS = 46
TICKS_MAX = 8


@dataclass(frozen=True)
class Bar:
    """A row as it is drawn: how many times as fast, from where to where, and the goal."""

    lines: list[str]
    factor: float
    low: float
    high: float
    goal: float | None
    told: str

    @property
    def height(self) -> int:
        """How much room it takes."""
        return max(BAR, LINE * len(self.lines)) + GAP


def bar_of(bench: str, row: Comparison) -> Bar:
    """Work a row out. A time is turned round, so that more is always better."""
    low, high = sorted(times(row.unit, each) for each in row.spread)
    goal = goal_of(bench, row)
    return Bar(
        textwrap.wrap(row.what, LABEL_CHARACTERS),
        times(row.unit, row.ratio),
        low,
        high,
        None if goal is None else goal.factor(row),
        f"{_short(row.semel)} against {_short(row.peer)} {row.unit}",
    )


def draw(bench: str, rows: Sequence[Comparison]) -> str:
    """Give the picture of a benchmark's rows as SVG."""
    bars = [bar_of(bench, row) for row in rows]
    most = max(max(bar.high, bar.goal or 0, 1.0) for bar in bars) * 1.05
    height = TOP + sum(bar.height for bar in bars) + BOTTOM
    scale = (WIDTH - LEFT - RIGHT) / most
    foot = height - BOTTOM
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" font-family="system-ui, sans-serif" font-size="12">'
        ),
        _text(
            8, 20, f"{TITLES.get(bench, bench)}: times as fast as the peer", "start", 16, bold=True
        ),
        *_legend(),
    ]
    for tick in _ticks(most):
        x = LEFT + tick * scale
        parts += [
            _line(x, TOP - 8, x, foot, FAINT, 0.5),
            _text(x, foot + 16, f"{tick:g}x", "middle"),
        ]
    parts.append(_line(LEFT + scale, TOP - 8, LEFT + scale, foot, FAINT, 2))  # as fast as the peer
    y = TOP
    for bar in bars:
        parts += _bar(bar, y, scale)
        y += bar.height
    parts.append(_text(8, height - 8, "More is better; a time (ms) is turned round.", "start", 11))
    return "\n".join([*parts, "</svg>", ""])


def _bar(bar: Bar, y: int, scale: float) -> list[str]:
    middle = y + (bar.height - GAP) / 2
    top = middle - BAR / 2
    colour = OURS if bar.factor >= 1 else LOSES
    first = middle - LINE * (len(bar.lines) - 1) / 2 + 4
    labels = [_text(LEFT - 12, first + LINE * at, line, "end") for at, line in enumerate(bar.lines)]
    low, high = LEFT + bar.low * scale, LEFT + bar.high * scale
    drawn = [
        *labels,
        (
            f'<rect x="{LEFT}" y="{top:.1f}" width="{bar.factor * scale:.1f}" height="{BAR}" '
            f'rx="2" fill="{colour}"/>'
        ),
        _line(low, middle, high, middle, TEXT, 2),
        _line(low, middle - 5, low, middle + 5, TEXT, 2),
        _line(high, middle - 5, high, middle + 5, TEXT, 2),
        _text(WIDTH - RIGHT + 10, middle - 3, f"{_short(bar.factor)}x", "start", 13, bold=True),
        _text(WIDTH - RIGHT + 10, middle + 12, bar.told, "start", 11),
    ]
    if bar.goal is not None:
        x = LEFT + bar.goal * scale
        drawn.append(_line(x, top - 6, x, top + BAR + 6, GOAL, 3, dashed=True))
    return drawn


def _legend() -> list[str]:
    y = 40
    return [
        f'<rect x="8" y="{y - 9}" width="14" height="10" rx="2" fill="{OURS}"/>',
        _text(27, y, "semel is faster", "start"),
        f'<rect x="128" y="{y - 9}" width="14" height="10" rx="2" fill="{LOSES}"/>',
        _text(147, y, "the peer is", "start"),
        _line(228, y - 4, 252, y - 4, TEXT, 2),
        _text(258, y, "least to greatest of the pairs", "start"),
        _line(442, y - 11, 442, y + 3, GOAL, 3, dashed=True),
        _text(450, y, "the goal", "start"),
    ]


def _ticks(most: float) -> list[float]:
    """Round numbers from nothing to the most."""
    steps = (0.25, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
    step = next((each for each in steps if most / each <= TICKS_MAX), most)
    return [step * at for at in range(int(most / step) + 1)]


def _short(number: float) -> str:
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.3g}"


def _line(
    x: float, y: float, to_x: float, to_y: float, colour: str, width: float, *, dashed: bool = False
) -> str:
    dashes = ' stroke-dasharray="4 2"' if dashed else ""
    return (
        f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="{colour}" '
        f'stroke-width="{width}"{dashes}/>'
    )


def _text(x: float, y: float, text: str, anchor: str, size: int = 12, *, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{TEXT}"'
        f"{weight}>{escape(text)}</text>"
    )


# -- curves


@dataclass(frozen=True)
class Curve:
    """A table whose rows are points: their places, how these are called, and their heights."""

    title: str
    unit: str
    points: list[tuple[float, str, float]]

    @classmethod
    def of(cls, title: str, rows: Sequence[dict[str, Any]]) -> Curve:
        """Take the cost of an event where the events of a minibatch differ, or their entities."""
        by_event = "entities" in title or "events of" in title
        unit = "CPU ns an event" if by_event else "CPU ms a minibatch"
        points = [(float(row["x"]), str(row["what"]), float(row[unit])) for row in rows]
        return cls(title, unit, points)


def draw_curves(curves: Sequence[Curve]) -> str:
    """Give the picture of curves, two beside each other; both axes are logarithmic."""
    wide, high = WIDTH / 2, PANEL
    height = high * math.ceil(len(curves) / 2)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" font-family="system-ui, sans-serif" font-size="12">'
        )
    ]
    for at, curve in enumerate(curves):
        parts += _panel(curve, wide * (at % 2), high * (at // 2), wide, high)
    return "\n".join([*parts, "</svg>", ""])


def _panel(curve: Curve, left: float, top: float, wide: float, high: float) -> list[str]:
    places = [math.log10(max(x, 0.1)) for x, _, _ in curve.points]
    heights = [math.log10(y) for _, _, y in curve.points]
    low, most = math.floor(min(heights)), math.ceil(max(heights) + 0.01)
    x0, x1 = left + PANEL_LEFT, left + wide - 50
    y0, y1 = top + high - PANEL_FOOT, top + PANEL_TOP
    across = (x1 - x0) / ((max(places) - min(places)) or 1)
    up = (y0 - y1) / (most - low)
    spots = [
        (x0 + (x - min(places)) * across, y0 - (y - low) * up)
        for x, y in zip(places, heights, strict=True)
    ]
    parts = [
        _text(left + 8, top + 18, curve.title, "start", 13, bold=True),
        _text(left + 8, top + 34, curve.unit, "start", 11),
    ]
    for power in range(low, most + 1):
        y = y0 - (power - low) * up
        parts += [_line(x0, y, x1, y, FAINT, 0.5), _text(x0 - 8, y + 4, f"{10.0**power:g}", "end")]
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
    parts.append(f'<polyline points="{joined}" fill="none" stroke="{OURS}" stroke-width="2"/>')
    for (x, y), (_, name, value) in zip(spots, curve.points, strict=True):
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{OURS}"/>',
            _text(x, y - 7, _short(value), "middle", 10),
            _text(x, y0 + 15, name.removesuffix(" minibatches"), "middle", 10),
        ]
    return parts


def table_lines(title: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Give a table of figures as Markdown, with its title."""
    names = [name for name in rows[0] if name != "x"]
    made = [f"{title}:", f"| {' | '.join(names)} |", f"|---{'|--:' * (len(names) - 1)}|"]
    for row in rows:
        cells = (row[name] for name in names)
        texts = (each if isinstance(each, str) else _short(each) for each in cells)
        made.append(f"| {' | '.join(texts)} |")
    return made


def lines(bench: str, rows: Sequence[Comparison]) -> list[str]:
    """Give the rows as lines of a table in Markdown."""
    made = []
    for row in rows:
        ours, _, peer = row.what.partition("; peer: ")
        goal, (low, high) = goal_of(bench, row), row.spread
        figures = f"{_short(row.semel)} | {_short(row.peer)} {row.unit}"
        made.append(
            f"| {ours} | {peer} | {figures} | **{row.ratio:.2f}** | {low:.2f} - {high:.2f} | "
            f"{'' if goal is None else goal.told(row)} |"
        )
    return made


def read(path: Path) -> tuple[str, list[Comparison]]:
    """Read the name of a benchmark and its rows."""
    result: dict[str, Any] = json.loads(path.read_text())
    return result["benchmark"], [Comparison.from_json(each) for each in result["rows"]]


def read_tables(path: Path) -> tuple[str, dict[str, list[dict[str, Any]]]]:
    """Read the name of a benchmark and its tables, none if it has rows."""
    result: dict[str, Any] = json.loads(path.read_text())
    return result["benchmark"], result.get("tables", {})


def main() -> None:
    """Draw every file that is named; print its lines of the table."""
    asking = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__)
    asking.add_argument("results", nargs="+", type=Path, metavar="RESULT.json")
    asking.add_argument("--into", type=Path, default=Path("docs/img"))
    asked = asking.parse_args()
    asked.into.mkdir(parents=True, exist_ok=True)
    for path in asked.results:
        name, tables = read_tables(path)
        if tables:
            curves = {each: tables[each] for each in tables if each.startswith("curve: ")}
            drawn = [Curve.of(each.removeprefix("curve: "), curves[each]) for each in curves]
            (asked.into / f"{name}.svg").write_text(draw_curves(drawn))
            for title, found in tables.items():
                print(*table_lines(title, found), "", sep="\n")
            continue
        name, rows = read(path)
        (asked.into / f"{name}.svg").write_text(draw(name, rows))
        print(*lines(name, rows), sep="\n")


if __name__ == "__main__":
    main()

"""The marker clock against the best fixed interval, in simulated time: minibatches and latency."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.marker_simulation import (
    ArrivalRates,
    InSource,
    PacedSource,
    TimedRun,
    best_fixed,
    linear,
    simulate,
)
from semel.streams import Application, MarkerClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.marker_simulation import Cost

SEED = 1
APPLICATION = Application("two seconds", 2.0, 0.8)
STEP = ArrivalRates([(40, 100), (30, 20_000), (40, 100)])
LONG_STEP = ArrivalRates([(150, 100), (30, 20_000), (150, 100)])
LINEAR = linear(0.2, 24e-6)
SUPERLINEAR = linear(0.1, 0.0, 5.4e-9)

CASES: tuple[tuple[str, ArrivalRates, Cost, int], ...] = (
    ("0.1 s + 10 us per event", STEP, linear(0.1, 10e-6), 5_000),
    ("0.2 s + 24 us per event", STEP, LINEAR, 5_000),
    ("0.05 s + 42 us per event", STEP, linear(0.05, 42e-6), 5_000),
    ("slower with size: 0.1 s + 5.4 ns per event squared", LONG_STEP, SUPERLINEAR, 5_000),
)


def measure() -> list[dict[str, Any]]:
    """Return for each sink what the clock and the best fixed interval need."""
    rows = []
    for what, load, cost, limit in CASES:
        fixed = best_fixed(load, cost, APPLICATION.latency_s, SEED)
        grows = cost is SUPERLINEAR
        paced = simulate(load, cost, PacedSource(_clock()), SEED, limit if grows else None)
        inside = simulate(load, cost, InSource(_clock()), SEED)
        rows.append(
            {
                "sink": what,
                "fixed_interval_s": None if fixed is None else round(fixed[0], 2),
                "fixed": None if fixed is None else _figures(fixed[1]),
                "paced": _figures(paced),
                "paced_limit": limit if grows else None,
                "in_source": _figures(inside),
            }
        )
    return rows


def _clock() -> MarkerClock:
    return MarkerClock(APPLICATION)


def _figures(run: TimedRun) -> dict[str, float]:
    return {
        "minibatches": len(run.minibatches),
        "p50_s": round(run.quantile(0.5), 2),
        "p99_s": round(run.quantile(0.99), 2),
        "p99_with_steps_s": round(run.quantile(0.99, settled=False), 2),
    }


def line(row: dict[str, Any]) -> str:
    """Return a row as a line of a table in Markdown."""
    fixed = row["fixed"]
    count = None if fixed is None else fixed["minibatches"]
    cells = [row["sink"], f"{row['fixed_interval_s']} s: {count}"]
    for name in ("paced", "in_source"):
        own = row[name]
        ratio = "" if count is None else f" ({count / own['minibatches']:.2f}x fewer)"
        cells.append(f"{own['minibatches']}{ratio}, p99 {own['p99_s']} s")
    return f"| {' | '.join(cells)} |"


WIDTH, HEIGHT, LEFT = 860, 130, 110
TEXT, OURS, LIMIT = "#7d8590", "#3b82c4", "#c77b3b"


def picture() -> str:
    """Draw rate, interval and latency of a paced run as SVG."""
    run = simulate(STEP, LINEAR, PacedSource(_clock()), SEED)
    times = [each.marker for each in run.minibatches]
    choices = [each.choice for each in run.minibatches]
    panels: list[tuple[str, list[float], float, float | None]] = [
        ("events/s, planned", [c.rate if c else 0.0 for c in choices], 22_000, None),
        ("interval, s", [c.interval_s if c else 0.0 for c in choices], 2.2, None),
        ("latency, s (worst)", [float(s.max()) for s, _ in run.latencies], 2.2, 2.0),
    ]
    height = len(panels) * HEIGHT + 30
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" font-family="system-ui, sans-serif" font-size="12">'
        )
    ]
    for at, (name, values, most, limit) in enumerate(panels):
        foot = (at + 1) * HEIGHT
        parts += _panel(name, times, values, most, limit, foot)
    for second in range(0, 111, 10):
        x = _x(second)
        parts.append(
            f'<text x="{x:.0f}" y="{height - 8}" text-anchor="middle" fill="{TEXT}">'
            f"{second} s</text>"
        )
    return "\n".join([*parts, "</svg>", ""])


def _x(second: float) -> float:
    return LEFT + second * (WIDTH - LEFT - 20) / 112


def _panel(
    name: str,
    times: Sequence[float],
    values: Sequence[float],
    most: float,
    limit: float | None,
    foot: int,
) -> list[str]:
    scale = (HEIGHT - 25) / most
    points = " ".join(
        f"{_x(at):.1f},{foot - min(value, most) * scale:.1f}"
        for at, value in zip(times, values, strict=True)
    )
    right = WIDTH - 20
    parts = [
        f'<text x="8" y="{foot - HEIGHT + 40}" fill="{TEXT}">{name}</text>',
        f'<line x1="{LEFT}" y1="{foot}" x2="{right}" y2="{foot}" stroke="{TEXT}"/>',
        f'<text x="{LEFT - 6}" y="{foot}" text-anchor="end" fill="{TEXT}">0</text>',
        (
            f'<text x="{LEFT - 6}" y="{foot - most * scale + 8:.0f}" text-anchor="end" '
            f'fill="{TEXT}">{most:g}</text>'
        ),
        f'<polyline points="{points}" fill="none" stroke="{OURS}" stroke-width="2"/>',
    ]
    if limit is not None:
        y = foot - limit * scale
        parts.append(
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="{LIMIT}" '
            'stroke-dasharray="4 2"/>'
        )
    return parts

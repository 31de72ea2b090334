"""The report of a chaos run as one HTML page with a timeline; it loads nothing."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from semel.verify.chaos.report import ChaosReport

WIDTH, LEFT, RIGHT, ROW, CURVE = 1_000, 150, 40, 18, 48

STYLE = """
:root{--ink:#1b1f24;--paper:#fff;--soft:#6a737d;--line:#d8dee4;--fault:#c2410c;--bad:#b91c1c;
--good:#15803d;--flow:#2563eb}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--paper:#0d1117;--soft:#8b949e;
--line:#30363d;--fault:#fb923c;--bad:#f87171;--good:#4ade80;--flow:#60a5fa}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);
max-width:1040px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}
table{border-collapse:collapse;width:100%}
td,th{padding:.25rem .5rem;border-bottom:1px solid var(--line);text-align:right}
.text{text-align:left}
.valid{color:var(--good)}.invalid,.unknown{color:var(--bad)}
.wide{overflow-x:auto}svg text{fill:var(--ink);font:11px system-ui,sans-serif}
svg .soft{fill:var(--soft)}svg .fault{fill:var(--fault)}svg .flow{fill:var(--flow)}
svg line{stroke:var(--line)}code{font-size:.9em}
"""


def write_page(report: ChaosReport, file: Path) -> None:
    """Write the page."""
    how = "plain foreachBatch" if report.liar else "semel"
    verdict = report.verdict.value
    title = f"Chaos: {how}, seed {report.seed}, {report.minutes:g} min"
    again = f"semel chaos --minutes {report.minutes:g} --seed {report.seed}"
    parts = [
        f"<h1>{escape(title)}: <span class={verdict}>{verdict}</span></h1>",
        f"<p>{_summary(report)} Repeat it with <code>{escape(again)}</code>.</p>",
        "<h2>Sinks</h2>",
        _sinks(report),
        "<h2>Timeline</h2>",
        _timeline(report),
        "<h2>Faults by kind</h2>",
        _kinds(report),
        "<h2>Every fault</h2>",
        _faults(report),
        *_violations(report),
    ]
    head = '<meta charset=utf-8><meta name=viewport content="width=device-width">'
    page = (
        f"<!doctype html><html lang=en><head>{head}<title>{escape(title)}</title>"
        f"<style>{STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )
    file.write_text(page, encoding="utf-8")


def _summary(report: ChaosReport) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    return escape(
        f"{report.events} events, {len(report.happened)} faults: {report.total('lost')} lost, "
        f"{report.total('repeated')} repeated, {report.total('reordered')} reordered, "
        f"{report.total('in_doubt')} in doubt. {versions}."
    )


def _table(headings: list[str], rows: list[list[object]], texts: tuple[int, ...] = (0,)) -> str:
    head = "".join(
        f"<th{' class=text' * (at in texts)}>{escape(each)}</th>"
        for at, each in enumerate(headings)
    )
    body = "".join(
        f"<tr>{''.join(_cell(each, text=at in texts) for at, each in enumerate(row))}</tr>"
        for row in rows
    )
    return f"<div class=wide><table><tr>{head}</tr>{body}</table></div>"


def _cell(value: object, *, text: bool) -> str:
    shown = escape("-" if value is None else str(value))
    return f"<td class=text>{shown}</td>" if text else f"<td>{shown}</td>"


def _sinks(report: ChaosReport) -> str:
    names = ["delivered", "lost", "repeated", "reordered", "unexpected"]
    rows: list[list[object]] = [
        [
            each.sink,
            each.capability,
            *(getattr(each, name) for name in names),
            f"{each.in_doubt} of at most {each.in_doubt_max}",
            each.pending,
            each.verdict,
        ]
        for each in report.sinks
    ]
    headings = ["sink", "capability", *names, "were in doubt", "still wait", "verdict"]
    return _table(headings, rows, (0, 1))


def _kinds(report: ChaosReport) -> str:
    rows: list[list[object]] = [[kind, *found.values()] for kind, found in report.by_kind().items()]
    headings = ["kind", "happened", "not possible", "recovered", "median s", "longest s"]
    return _table(headings, rows)


def _faults(report: ChaosReport) -> str:
    rows: list[list[object]] = [
        [each.kind, each.at_s, each.lasted_s, each.not_possible or each.what, each.recovered_s]
        for each in report.faults
    ]
    return _table(["kind", "at s", "lasts s", "what", "recovered after s"], rows, (0, 3))


def _violations(report: ChaosReport) -> list[str]:
    found = [(each.sink, text) for each in report.sinks for text in each.violations]
    if not found:
        return []
    shown = "".join(f"<li>{escape(f'{sink}: {text}')}</li>" for sink, text in found[:200])
    return [f"<h2>Violations</h2><p>{len(found)}, the first 200:</p><ul>{shown}</ul>"]


def _timeline(report: ChaosReport) -> str:
    """Draw a row for each kind of fault, and below the effects per second of each sink."""
    lasts_s = max(
        report.minutes * 60,
        *(len(each.per_second) for each in report.sinks),
        *(each.at_s + each.lasted_s for each in report.faults),
    )
    scale = (WIDTH - LEFT - RIGHT) / lasts_s
    kinds = sorted({each.kind for each in report.happened})
    parts: list[str] = []
    for row, kind in enumerate(kinds):
        y = row * ROW
        parts.append(f"<text x=0 y={y + 13}>{escape(kind)}</text>")
        for each in report.happened:
            if each.kind == kind:
                x, width = LEFT + each.at_s * scale, max(3.0, each.lasted_s * scale)
                title = escape(f"{each.at_s} s: {each.what}")
                parts.append(
                    f"<rect class=fault x={x:.1f} y={y + 3} width={width:.1f} height={ROW - 6}"
                    f" rx=2><title>{title}</title></rect>"
                )
    top = len(kinds) * ROW + 8
    for sink in report.sinks:
        parts += _curve(sink.sink, sink.per_second, top, scale)
        top += CURVE
    for minute in range(int(lasts_s // 60) + 1):
        x = LEFT + minute * 60 * scale
        parts.append(f"<line x1={x:.1f} x2={x:.1f} y1=0 y2={top} />")
        parts.append(f"<text class=soft x={x + 2:.1f} y={top + 12}>{minute} min</text>")
    label = "Faults and effects per second over time"
    return (
        f'<div class=wide><svg viewBox="0 0 {WIDTH} {top + 18}" width={WIDTH} role=img '
        f'aria-label="{label}">{"".join(parts)}</svg></div>'
    )


def _curve(sink: str, per_second: tuple[int, ...], top: int, scale: float) -> list[str]:
    most = max(per_second, default=1)
    height = CURVE - 10
    bars = [
        f"<rect class=flow x={LEFT + second * scale:.1f} y={top + height * (1 - each / most):.1f}"
        f" width={max(scale, 0.8):.2f} height={height * each / most:.1f} />"
        for second, each in enumerate(per_second)
        if each
    ]
    return [f"<text x=0 y={top + 24}>{escape(sink)}, most {most}/s</text>", *bars]

"""Makes the pages: templates with what `semel.operate` answered, everything escaped.

Always true:
- every value goes through the escaping of the templates; no text of a ledger or a request is HTML;
- a region that is sent live is the same template as in the page.
"""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from semel.console.charts import latency_chart, throughput_chart, timeline_chart
from semel.operate import Severity, utc_text, write_id
from semel.urls import redact

if TYPE_CHECKING:
    from collections.abc import Mapping

    from semel.operate import PipelineDetail, PipelineOverview, PipelinesPage
    from semel.runtime import Clock

VALUE_SHOWN_MAX = 4_000
"""How many characters of one value of a payload are on a page."""

PIPELINES_REGIONS = ("summary", "pipelines")
PIPELINE_REGIONS = (
    "state",
    "advice",
    "figures",
    "charts",
    "sinks",
    "partitions",
    "markers",
    "kept",
)
"""The live regions of the two pages, in their order; each is a template of its own."""

_ORDER = [*Severity, None]


class Renderer:
    """Renders pages and regions; its methods may run in any thread."""

    def __init__(self, ledger: str, clock: Clock, *, has_tokens: bool) -> None:
        folder = Path(__file__).with_name("templates")
        self._environment = Environment(
            loader=FileSystemLoader(folder),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters |= {
            "ago": _ago,
            "bytes": _bytes,
            "count": _count,
            "cut": _cut,
            "id": write_id,
            "number": _number,
            "osn": _osn,
            "rate": _rate,
            "seconds": _seconds,
            "sentence": _sentence,
            "utc": _utc,
        }
        self._environment.globals |= {
            "ledger": redact(ledger),
            "export": f"export SEMEL_LEDGER={shlex.quote(ledger)}"
            if redact(ledger) == ledger
            else "",
            "has_tokens": has_tokens,
            "link": _link,
            "now": clock.wall,
            "throughput_chart": throughput_chart,
            "latency_chart": latency_chart,
            "timeline_chart": timeline_chart,
        }

        for name in self._environment.list_templates():
            self._environment.get_template(name)  # compiled now, and not while a person waits

    def page(self, template: str, **values: Any) -> bytes:
        """Return a page in UTF-8."""
        text = self._environment.get_template(template).render(values)
        return text.encode("utf-8", "xmlcharrefreplace")

    def pipelines_regions(self, found: PipelinesPage) -> dict[str, Markup]:
        """Return the live regions of a page of pipelines by their ids."""
        return self._regions("pipelines", PIPELINES_REGIONS, _pipelines_values(found))

    def pipeline_regions(self, detail: PipelineDetail) -> dict[str, Markup]:
        """Return the live regions of the page of a pipeline by their ids."""
        return self._regions("pipeline", PIPELINE_REGIONS, _pipeline_values(detail))

    def _regions(
        self, page: str, names: tuple[str, ...], values: Mapping[str, Any]
    ) -> dict[str, Markup]:
        found = {}
        for name in names:
            template = self._environment.get_template(f"{page}_{name}.html")
            found[name] = Markup(template.render(values).strip())  # noqa: S704 - it is escaped
        return found


def _pipelines_values(found: PipelinesPage) -> dict[str, Any]:
    """Return what the page of pipelines shows: those with problems first."""
    by_urgency = sorted(found.pipelines, key=lambda each: _ORDER.index(each.severity))
    return {
        "found": found,
        "pipelines": by_urgency,
        "urgent": sum(each.severity is Severity.PROBLEM for each in by_urgency),
        "rates": {each.status.pipeline: _rates(each) for each in by_urgency},
        "parked": {each.status.pipeline: _parked(each) for each in by_urgency},
    }


def _pipeline_values(detail: PipelineDetail) -> dict[str, Any]:
    """Return what the page of one pipeline shows."""
    overview = detail.overview
    figures = overview.status.figures
    return {
        "detail": detail,
        "overview": overview,
        "status": overview.status,
        "newest": () if figures is None else figures.newest,
        "rates": _rates(overview),
        "parked": _parked(overview),
        "pending": {
            sink: sum(row.state.value == "pending" for row in rows)
            for sink, rows in detail.partitions.items()
        },
    }


def _rates(overview: PipelineOverview) -> dict[str, float | None]:
    """Return events per second at the sink that gets the most, and seconds per minibatch."""
    figures = overview.status.figures
    rates = None if figures is None else figures.rates
    if rates is None:
        return {"per_second": None, "seconds": None, "seconds_max": None}
    return {
        "per_second": max((rates.per_second(sink) for sink in rates.delivered), default=0.0),
        "seconds": rates.seconds_each,
        "seconds_max": rates.seconds_max,
    }


def _parked(overview: PipelineOverview) -> dict[str, Any]:
    """Return how many events are parked, over all sinks; `cut` if these are least numbers."""
    sinks = overview.status.sinks
    return {
        "in_doubt": sum(sink.in_doubt for sink in sinks),
        "rejected": sum(sink.rejected for sink in sinks),
        "waiting": sum(sink.waiting for sink in sinks),
        "cut": overview.cut,
        "oldest_at": overview.oldest_at,
    }


# -- filters


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,}"


def _count(value: float | None, cut: object = False) -> str:
    """Write a count that may be a least number."""
    return "-" if value is None else f"{value:,}+" if cut else f"{value:,}"


def _rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 100 else f"{value:,.0f} s"


def _bytes(value: int | None) -> str:
    if value is None:
        return "-"
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _osn(value: tuple[int, int] | None) -> str:
    if value is None:
        return "-"
    return f"{value[0]:,}" if value[0] == value[1] else f"{value[0]:,}..{value[1]:,}"


def _sentence(text: str) -> str:
    """Write a message of semel as a sentence of a page."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def _utc(at: float | None) -> str:
    return (utc_text(at) or "-").replace("T", " ")


def _ago(at: float | None) -> Markup:
    """Write a time that the browser shows as an age; without scripts it is in UTC."""
    if at is None:
        return Markup("-")
    moment = datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
    return Markup('<time class="ago" datetime="{}" data-at="{}">{}</time>').format(
        moment, f"{at:.3f}", _utc(at)
    )


def _cut(value: object, length: int = VALUE_SHOWN_MAX) -> str:
    """Return the beginning of a long text."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= length else f"{text[:length]}... ({len(text) - length:,} more)"


def _link(path: str, **query: object) -> Markup:
    """Return an address with its query; what is empty is left out."""
    named = {
        name.rstrip("_"): str(value) for name, value in query.items() if value not in (None, "")
    }
    return escape(f"{path}?{urlencode(named, errors='replace')}" if named else path)

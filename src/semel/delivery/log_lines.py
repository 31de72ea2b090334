"""Log lines about minibatches, for people and, as JSON, for programs.

Always true: a line is made only if the level of the logger asks for it.
"""

from __future__ import annotations

import datetime as dt
import logging
from typing import TYPE_CHECKING, Any

from semel.events.encoding import canonical

if TYPE_CHECKING:
    from semel.delivery.observer import MinibatchCompleted

FIELDS = "semel"
"""The attribute of a log record that has its figures by name."""

log = logging.getLogger("semel")


def summary(event: MinibatchCompleted) -> dict[str, Any]:
    """Return the figures of a minibatch by name, those of all its sinks together."""
    figures = event.figures.values()
    delivered = sum(each.delivered for each in figures)
    return {
        "pipeline": event.pipeline,
        "run": event.run,
        "minibatch": str(event.minibatch),
        "delivered": delivered,
        "delivered_by_sink": {sink: each.delivered for sink, each in event.figures.items()},
        "skipped": event.skipped + sum(each.skipped for each in figures),
        "suppressed": sum(each.suppressed for each in figures),
        "parked": sum(each.parked for each in figures),
        "in_doubt": sum(each.doubted for each in figures),
        "dropped": sum(each.dropped for each in figures),
        "counted_only": event.again,
        "seconds": round(event.seconds, 3),
        "per_s": round(delivered / event.seconds if event.seconds > 0 else 0.0, 1),
    }


def log_minibatch(event: MinibatchCompleted) -> None:
    """Log what a minibatch did, in words and by name."""
    known = summary(event)
    sinks = ", ".join(f"{count} to {name!r}" for name, count in known["delivered_by_sink"].items())
    log.info(
        "pipeline %r, minibatch %s: %d delivered (%s), %d skipped, %d suppressed, %d parked, "
        "%.3f s, %.0f/s%s",
        event.pipeline,
        event.minibatch,
        known["delivered"],
        sinks,
        known["skipped"],
        known["suppressed"],
        known["parked"],
        event.seconds,
        known["per_s"],
        ", counted only: it was complete before" if event.again else "",
        extra={FIELDS: known},
    )


class JsonLogs(logging.Formatter):
    """A formatter of `logging` that writes each record as one line of JSON.

    `time` (UTC), `level`, `logger` and `message` are always there; `error` if there was one. For a
    line about a minibatch also its figures: `pipeline`, `run`, `minibatch`, `delivered`, ...

        handler = logging.StreamHandler()
        handler.setFormatter(semel.JsonLogs())
        logging.getLogger("semel").addHandler(handler)
    """

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return what the line has, by name."""
        at = dt.datetime.fromtimestamp(record.created, dt.UTC)
        made = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            made["error"] = self.formatException(record.exc_info)
        return {**getattr(record, FIELDS, {}), **made}

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return canonical(self.fields(record))

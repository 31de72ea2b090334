"""Log lines about what a pipeline does, for people and, as JSON, for programs.

Always true: a line is made only if the level of the logger asks for it.
"""

from __future__ import annotations

import datetime as dt
import logging
from typing import TYPE_CHECKING, Any

from semel.events.encoding import canonical

if TYPE_CHECKING:
    from semel.delivery.observer import (
        EventResent,
        Figures,
        MarkerChosen,
        MinibatchCompleted,
        MinibatchOpened,
    )

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


def log_chosen(event: MarkerChosen) -> None:
    """Log a choice that differs: as a warning if the latency cannot be reached."""
    level = logging.INFO if event.choice.reachable else logging.WARNING
    reached = "" if event.p99_s is None else f"; the p99 so far is about {event.p99_s:.2g} s"
    log.log(level, "pipeline %r: %s%s", event.pipeline, event.choice.reason, reached)


def log_opened(event: MinibatchOpened) -> None:
    """Log a minibatch that begins a generation, or was settled by a person."""
    place = f"pipeline {event.pipeline!r}, minibatch {event.minibatch}"
    if event.new_generation:
        why = "the checkpoint was lost or replaced"
        if event.judged:
            why = "the previous minibatch was judged with `semel resolve`"
        log.warning(
            "%s: %s; generation %d continues from the ledger and logs what it skips",
            place,
            why,
            event.minibatch.generation,
        )
    if event.settled:
        log.warning("%s: accepted as recorded, as `semel resolve` decided", place)


def log_not_sent(event: MinibatchCompleted, figures: Figures) -> None:
    """Log a warning for each kind of event that was not sent, with its count."""
    before = "the minibatch was judged" if event.judged else "the checkpoint was lost"
    for count, text in (
        (figures.skipped, _SKIPPED.format(before=before)),
        (figures.repeats, _REPEATS),
        (figures.suppressed, _SUPPRESSED),
        (figures.parked_before, _PARKED_BEFORE),
        (figures.dropped_before, _DROPPED_BEFORE),
        (figures.doubted, _DOUBTED),
        (figures.parked - figures.doubted, _PARKED),
        (figures.dropped, _DROPPED),
    ):
        if count:
            place = f"pipeline {event.pipeline!r}, minibatch {event.minibatch}"
            log.warning("%s: events %s: %d", place, text, count)


def log_resent(event: EventResent) -> None:
    """Log the outcome of a resend, and who requested it."""
    log.info(
        "pipeline %r, sink %r: resend %d of event %s of %r, %s: %s",
        event.pipeline,
        event.sink,
        event.number,
        event.event,
        event.entity,
        f"requested by {event.by}" if event.by else "next in its queue",
        event.outcome,
    )


_SKIPPED = "not sent, because handled (delivered, parked or dropped) before {before}"
_REPEATS = "dropped, because their ids came in an earlier minibatch (drop_repeats=True)"
_SUPPRESSED = "not sent again, because an earlier attempt delivered them"
_PARKED_BEFORE = (
    "not sent again and not delivered, because an earlier attempt parked them (list them with "
    "`semel parked ls`)"
)
_DROPPED_BEFORE = (
    "not sent again, because an earlier attempt dropped them in doubt (on_doubt='skip')"
)
_DOUBTED = "parked in doubt (list them with `semel parked ls`)"
_PARKED = "parked for another reason, or behind a parked event (list them with `semel parked ls`)"
_DROPPED = "in doubt and dropped (on_doubt='skip'): they may not have arrived"


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
